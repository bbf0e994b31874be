"""The answer inside a response: behind the reasoning, in a box, after a phrase, or all of it."""

import re
from dataclasses import dataclass
from typing import Literal

from roll_rewards.numerals import last_number

Thinking = Literal["strip", "ignore", "require"]
Source = Literal["box", "tag", "phrase", "whole", "formula", "number"]
SOURCES: tuple[Source, ...] = ("box", "tag", "phrase", "whole", "formula", "number")

_WINDOW = 100_000
_LINE = 400
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_PHRASE = re.compile(
    r"(?:####|(?:final\s+)?(?:answer|result)\s*(?:is|are|was|equals|:|=|：)|答案(?:是|为|：|:))[\s:*_]*",
    re.IGNORECASE,
)
_END = re.compile(r"\.(?=\s|$)|[!?](?=\s+[A-Z])|,?\s+(?:because|since|as|which|so|where)\s")
_FORMULA = re.compile(
    r"(?<!\\)\$\$?([^$]{1,2000})(?<!\\)\$\$?|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]", re.DOTALL
)
_PLAIN_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """An answer and where it stood.

    Example: `Extracted(text="42", source="box")`.
    """

    text: str
    source: Source


def visible_part(
    response: str, *, thinking: Thinking, open_tag: str = "<think>", close_tag: str = "</think>"
) -> str:
    """The part of a response that answers, without its reasoning.

    Args:
        response: All that the policy said.
        thinking: `strip` takes what follows the last closing tag, everything when there is no tag, and
            nothing when reasoning was opened and not closed. `ignore` takes tags for text. `require` takes
            what follows the closing tag, of which there must be exactly one, and nothing otherwise.
        open_tag: Begins the reasoning.
        close_tag: Ends it.
    """
    if thinking == "ignore":
        return response
    if thinking == "require":
        return response.partition(close_tag)[2] if response.count(close_tag) == 1 else ""
    before, closed, after = response.rpartition(close_tag)
    visible = after if closed else response
    return visible if open_tag not in visible else visible.partition(open_tag)[0] if closed or before else ""


def extract_answer(response: str, sources: tuple[Source, ...] = SOURCES) -> Extracted | None:
    """The answer by the first source that the response has; None when there is none.

    A source that is there but empty (`\\boxed{}`), or a box that never closes, ends the search: what the
    response meant to be its answer is no answer.

    Args:
        response: Its visible part; of a longer one the last 100,000 characters are looked at.
        sources: In this order: `box` (the last `\\boxed` or `\\fbox`), `tag` (the last
            `<answer>...</answer>`), `phrase` (after the last "answer is", "answer:" or "####"), `whole` (a
            response that is nothing but a short answer), `formula` (the last of `$...$`), `number` (the
            last).
    """
    text = response[-_WINDOW:]
    readers = {
        "box": _boxed,
        "tag": _tagged,
        "phrase": _announced,
        "whole": _whole,
        "formula": _formula,
        "number": _number,
    }
    for source in sources:
        found = readers[source](text)
        if found is not None:
            found = found.strip()
            return Extracted(text=found, source=source) if found else None
    return None


def box_content(text: str, start: int, *, limit: int = 20_000) -> str | None:
    """What the braces that open at `start` enclose; None when they do not close within `limit` characters."""
    depth, position, end = 0, start, min(len(text), start + limit)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start + 1 : position]
        position += 1
    return None


def _boxed(text: str) -> str | None:
    last = None
    for match in _BOX.finditer(text):
        last = match if last is None or last.start() + 7 <= match.start() else last
    if last is None:
        return None
    content = _content(text, last)
    return "" if content is None else content


def _content(text: str, box: re.Match[str]) -> str | None:
    if text[box.end() : box.end() + 1] == "{":
        return box_content(text, box.end())
    bare = re.match(r"[^\s$.,;]{1,50}", text[box.end() : box.end() + 60])
    return bare[0] if bare else None


def _tagged(text: str) -> str | None:
    before, close, _ = text.rpartition("</answer>")
    if not close or "<answer>" not in before:
        return None
    inside = before.rpartition("<answer>")[2]
    nested = _boxed(inside)
    return inside if nested is None else nested


def _announced(text: str) -> str | None:
    last = None
    for match in _PHRASE.finditer(text):
        last = match
    if last is None:
        return None
    line = text[last.end() : last.end() + _LINE].lstrip().split("\n")[0]
    formula = re.match(r"[^$]{0,40}?(?<!\\)\$([^$]+)(?<!\\)\$", line)
    if formula is not None and not _PLAIN_WORD.search(line[: formula.start(1)]):
        return formula[1]
    return _END.split(line)[0].strip(' *_`"') or None


def _whole(text: str) -> str | None:
    bare = text.strip()
    if not bare or len(bare) > _LINE * 10 or "\n" in bare.replace("\\\\\n", ""):
        return None
    words = _PLAIN_WORD.findall(re.sub(r"\\(?:text|mathrm|mbox|begin|end)\s*\{[^}]*\}", "", bare))
    ended = bare.endswith((".", "!", "?"))
    sentence = len(words) > 6 or (ended and (len(words) > 3 or (len(words) > 1 and re.search(r"\d", bare))))
    return None if sentence else bare


def _formula(text: str) -> str | None:
    last = None
    for match in _FORMULA.finditer(text[-4_000:]):
        last = match
    return None if last is None else last[1] or last[2] or last[3]


def _number(text: str) -> str | None:
    found = last_number(text)
    return None if found is None else found[0]
