"""IFEval's checks of how a response is arranged: lists, sections, titles, quotes, repeats, endings.

Source: Instruction-Following Evaluation for Large Language Models (arXiv 2311.07911), table 3.
"""

import json
import re

CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def number_placeholders(response: str, *, num_placeholders: int) -> bool:
    """Whether there are at least so many placeholders such as `[address]`."""
    return sum(_placeholders(line) for line in response.split("\n")) >= num_placeholders


def postscript(response: str, *, postscript_marker: str) -> bool:
    """Whether a postscript follows, as `P.S.` or `P.P.S` with or without spaces."""
    text = response.lower()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(postscript_marker, re.escape(postscript_marker.lower())), text) is not None


def number_bullet_lists(response: str, *, num_bullets: int) -> bool:
    """Whether there are exactly so many lines that begin with `*` or `-`."""
    stars = re.findall(r"^[^\S\n]*\*[^\*].*$", response, re.MULTILINE)
    dashes = re.findall(r"^[^\S\n]*-.*$", response, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


def constrained_response(response: str) -> bool:
    """Whether the response says one of IFEval's three answers."""
    return any(answer in response.strip() for answer in CONSTRAINED_ANSWERS)


def number_highlighted_sections(response: str, *, num_highlights: int) -> bool:
    """Whether there are at least so many parts between single or double stars."""
    single = re.findall(r"\*[^\n\*]*\*", response)
    double = re.findall(r"\*\*[^\n\*]*\*\*", response)
    filled = sum(bool(part.strip("*").strip()) for part in single)
    filled += sum(bool(part.removeprefix("**").removesuffix("**").strip()) for part in double)
    return filled >= num_highlights


def multiple_sections(response: str, *, section_spliter: str, num_sections: int) -> bool:
    """Whether there are at least so many sections such as `SECTION 1`."""
    parts = re.split(r"\s?" + re.escape(section_spliter) + r"\s?\d+\s?", response)
    return len(parts) - 1 >= num_sections


def json_format(response: str) -> bool:
    """Whether the response, a fence of three backticks taken off, is JSON."""
    text = response.strip()
    for mark in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(mark)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(response: str) -> bool:
    """Whether there is a title in double angular brackets."""
    for line in response.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


def two_responses(response: str) -> bool:
    """Whether there are two different responses, divided by six stars."""
    parts = response.split("******")
    inner = [part for place, part in enumerate(parts) if part.strip() or 0 < place < len(parts) - 1]
    return len(inner) == 2 and all(part.strip() for part in inner) and inner[0].strip() != inner[1].strip()


def repeat_prompt(response: str, *, prompt_to_repeat: str) -> bool:
    """Whether the response begins with the prompt, word for word."""
    return response.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(response: str, *, end_phrase: str) -> bool:
    """Whether the response ends with a phrase."""
    return response.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(response: str) -> bool:
    """Whether the whole response stands in double quotes."""
    text = response.strip()
    return len(text) > 1 and text[0] == '"' and text[-1] == '"'


def _placeholders(line: str) -> int:
    """Brackets that open and close in a line, in time proportional to its length."""
    count, start = 0, line.find("[")
    while start >= 0:
        end = line.find("]", start)
        if end < 0:
            break
        count += 1
        start = line.find("[", end)
    return count
