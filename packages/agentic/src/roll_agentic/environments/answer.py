"""The answer inside a response: marked, or the whole of it. Used by environments that want a short one."""

import re


def marked_answer(response: str) -> str:
    """The content of the last `<answer>` element, else of the last `\\boxed{}`, else all; stripped.

    Args:
        response: What a policy said; thinking before the mark is left out.
    """
    elements = re.findall(r"<answer>(.*?)</answer>", response, re.DOTALL)
    if elements:
        return str(elements[-1]).strip()
    start = response.rfind("\\boxed{")
    if start < 0:
        return response.strip()
    depth, begin = 0, start + len("\\boxed{")
    for position in range(begin - 1, len(response)):
        depth += {"{": 1, "}": -1}.get(response[position], 0)
        if depth == 0:
            return response[begin:position].strip()
    return response[begin:].strip()
