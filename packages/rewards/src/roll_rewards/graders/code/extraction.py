"""The program in a response: a fenced block, or all of it. Called by the `code` grader."""

import re
from typing import Literal

from roll_rewards.errors import RewardError

Fence = Literal["last", "first", "longest", "all"]

_NAMES = {
    "python": {"python", "python3", "py", "py3"},
    "cpp": {"cpp", "c++", "cc", "cxx", "c"},
    "shell": {"bash", "sh", "shell", "zsh", "console"},
}
_OPENING = re.compile(r"^[ \t]{0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)$", re.MULTILINE)


def language_called(name: object) -> str:
    """`python`, `cpp` or `shell`, by any of the names that code blocks use.

    Args:
        name: For example `c++`.

    Raises:
        RewardError: It is none of these languages.
    """
    known = str(name).lower()
    for language, names in _NAMES.items():
        if known == language or known in names:
            return language
    raise RewardError(f"language must be python, cpp or shell, got {name!r:.80}")


def extract_code(
    response: str, *, language: str, fence: Fence = "last", fenced_only: bool = False
) -> str | None:
    """The program in a response, or None if there is none.

    A block counts if its language is named so, or if it names none and no other block does. A block
    that is not closed reaches to the end. What comes before the last `</think>` is not looked at.

    Args:
        response: The text the policy produced.
        language: `python`, `cpp` or `shell`.
        fence: Which block, if there are several; `all` joins them.
        fenced_only: Whether a response without any fence has no program, instead of being one.
    """
    text = response.rpartition("</think>")[2]
    blocks = _blocks(text)
    if not blocks:
        return None if fenced_only or not text.strip() else text
    named = [body for info, body in blocks if info in _NAMES[language]]
    chosen = named or [body for info, body in blocks if not info]
    if not chosen:
        return None
    if fence == "all":
        return "\n".join(chosen)
    if fence == "longest":
        return max(chosen, key=len)
    return chosen[-1 if fence == "last" else 0]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks as language in lower case and contents."""
    found, position = [], 0
    while (opening := _OPENING.search(text, position)) is not None:
        mark = opening["fence"]
        closing = re.compile(rf"^[ \t]{{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        start = min(opening.end() + 1, len(text))
        end = closing.search(text, start)
        words = opening["info"].strip().split(None, 1)
        info = words[0].strip("{}.").lower() if words else ""
        found.append((info, text[start : end.start() if end else len(text)]))
        if end is None:
            break
        position = end.end()
    return found
