"""The verdict in a judge's text, or why there is none."""

import json
import re
from dataclasses import dataclass
from typing import Literal

VerdictKind = Literal["yes_no", "score", "preference"]

_REASON_CHARS = 300
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)
_YES_NO = re.compile(
    r"(?:verdict|answer|judg(?:e)?ment|correct|final|decision)\W{1,8}(yes|no|true|false|correct|incorrect)\b"
    r"|\[\[\s*(yes|no)\s*\]\]|\\boxed\{(?:\\text\{)?\s*(yes|no|correct|incorrect)",
    re.IGNORECASE,
)
_LONE = re.compile(r"\W*(yes|no|true|false|correct|incorrect)\W*", re.IGNORECASE)
_SCORE = re.compile(
    r"(?:score|rating|grade|verdict)\W{1,8}(-?\d+(?:\.\d+)?)|\[\[\s*(-?\d+(?:\.\d+)?)\s*\]\]"
    r"|\\boxed\{\s*(-?\d+(?:\.\d+)?)|<score>\s*(-?\d+(?:\.\d+)?)\s*</score>",
    re.IGNORECASE,
)
_PREFERENCE = re.compile(
    r"(?:verdict|winner|better|preference)\W{1,8}(?:response\s+|assistant\s+)?(a|b|tie|c)\b"
    r"|\[\[\s*(a|b|c|tie)\s*\]\]|\\boxed\{(?:\\text\{)?\s*(a|b|tie)",
    re.IGNORECASE,
)
_VALUES = {
    "yes": 1.0, "true": 1.0, "correct": 1.0, "no": 0.0, "false": 0.0, "incorrect": 0.0,
    "a": 1.0, "b": 0.0, "tie": 0.5, "c": 0.5,
}  # fmt: skip
_KEYS = ("verdict", "score", "rating", "answer", "correct", "winner", "grade")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a judge said.

    Example: `Verdict(value=1.0, reason="Both give 42.")`.

    Attributes:
        value: 0..1; of a preference 1 for A, 0 for B, 0.5 for neither. None when the text has no verdict.
        reason: The end of what stands before the verdict, or why there is none.
    """

    value: float | None
    reason: str


def read_verdict(text: str, kind: VerdictKind, *, low: float = 1.0, high: float = 10.0) -> Verdict:
    """The last verdict in a text; thoughts in `<think>` tags are left out.

    Understood are `Verdict: YES`, `[[7]]`, `\\boxed{A}`, JSON such as `{"verdict": "yes", "reason": "..."}`,
    and a text that is nothing but the verdict.

    Args:
        text: What the judge wrote.
        kind: `yes_no`, `score` (from `low` to `high`) or `preference` (A, B or tie).
        low: The score that is worth 0.
        high: The score that is worth 1.
    """
    spoken = _THOUGHTS.sub("", text).strip()
    if not spoken:
        return Verdict(value=None, reason="the judge said nothing beside its thoughts")
    structured = _from_json(spoken, kind, low, high)
    if structured is not None:
        return structured
    pattern = {"yes_no": _YES_NO, "score": _SCORE, "preference": _PREFERENCE}[kind]
    found = list(pattern.finditer(spoken[-20_000:]))
    if found:
        last = found[-1]
        word = next(group for group in last.groups() if group)
        return _valued(word, kind, low, high, spoken[-20_000:][: last.start()])
    if kind == "yes_no" and (lone := _LONE.fullmatch(spoken[:200])):
        return _valued(lone[1], kind, low, high, "")
    if kind == "score" and re.fullmatch(r"\W*-?\d+(?:\.\d+)?\W*", spoken[:50]):
        return _valued(spoken.strip(" *.`"), kind, low, high, "")
    if kind == "preference" and (alone := re.fullmatch(r"\W*(a|b|tie)\W*", spoken[:50], re.IGNORECASE)):
        return _valued(alone[1], kind, low, high, "")
    return Verdict(value=None, reason=f"no verdict in {spoken[-_REASON_CHARS:]!r}")


def _valued(word: str, kind: VerdictKind, low: float, high: float, before: str) -> Verdict:
    if kind != "score":
        return Verdict(value=_VALUES[word.lower()], reason=_tail(before))
    try:
        score = float(word)
    except ValueError:
        return Verdict(value=None, reason=f"no number in {word!r:.80}")
    if not low <= score <= high:
        return Verdict(value=None, reason=f"the score {score:g} is outside of {low:g}..{high:g}")
    return Verdict(value=(score - low) / (high - low), reason=_tail(before))


def _from_json(text: str, kind: VerdictKind, low: float, high: float) -> Verdict | None:
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end:
        return None
    try:
        value = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    said = next((value[key] for key in _KEYS if key in value), None)
    reason = str(value.get("reason", value.get("explanation", "")))
    if isinstance(said, bool) and kind == "yes_no":
        return Verdict(value=float(said), reason=_tail(reason))
    if isinstance(said, int | float) and not isinstance(said, bool) and kind == "score":
        return _valued(str(said), kind, low, high, reason)
    if isinstance(said, str) and kind == "score":
        return _valued(said.strip(), kind, low, high, reason)
    allowed = (
        ("a", "b", "tie", "c")
        if kind == "preference"
        else ("yes", "no", "true", "false", "correct", "incorrect")
    )
    if isinstance(said, str) and said.strip().lower() in allowed:
        return _valued(said.strip(), kind, low, high, reason)
    return None


def _tail(text: str) -> str:
    return " ".join(text.split())[-_REASON_CHARS:]
