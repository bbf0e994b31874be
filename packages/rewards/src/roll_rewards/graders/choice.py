"""Grader `choice`: the letter of a multiple-choice answer."""

import re
from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, extract_answer, visible_part
from roll_rewards.scores import Score, failed

_PREFIX = re.compile(
    r"^(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)?\s*(?:is\s*)?[:\s]*", re.IGNORECASE
)
_DRESSING = re.compile(r"\\(?:text|mathrm|textbf|mathbf|boxed)\s*\{|[{}$*`\\]")
_SAYS = re.compile(
    r"(?:answer|option|choice)\s*(?:is|are|:|=|：|would be|should be)"
    r"(?:\\?[\[({$*`:\s]|\\text|\\boxed|option|choice)*([A-Za-z])(?![A-Za-z])(?!')"
    r"|(?<![A-Za-z])([A-Za-z])\s+is\s+(?:the\s+)?correct",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The value `right`, `wrong` or `unparsed`, by the letter that the response chose.

    CrossThinkQA's reward types are such values: `right=1, wrong=-1, unparsed=-1` and the like; repetition and
    length enter through `weighted`.

    Example: `Choice(letters="ABCD", read="boxed")` reads C from `so \\boxed{\\text{(C)}}`.

    Attributes:
        letters: The choices; lower-case letters are read as well.
        read: `boxed` takes a box or `<answer>` tag alone. `stated` also takes "the answer is C" and a
            response that is nothing but a letter, with or without the choice's text. `any` also takes the
            last letter of a choice that stands alone in the response.
        right: Value of the right choice.
        wrong: Value of any other.
        unparsed: Value when no choice was read, or several.
        thinking: What tags of reasoning mean; see `visible_part`.

    Raises:
        RewardError: `letters` is empty or has anything but different capital letters; when grading, the
            reference names no choice.
    """

    letters: str = "ABCDEFGHIJ"
    read: Literal["boxed", "stated", "any"] = "stated"
    right: float = 1.0
    wrong: float = 0.0
    unparsed: float = 0.0
    thinking: Thinking = "strip"

    def __post_init__(self) -> None:
        if not re.fullmatch("[A-Z]+", self.letters) or len(set(self.letters)) != len(self.letters):
            raise RewardError(
                f"option 'letters' of grader 'choice' must be different capital letters, got {self.letters!r}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` is the letter. See `Grader.grade`.

        Args:
            response: See `Grader.grade`.
            reference: A letter, also as `(C)`; the number of the choice counted from 0; or its text, when
                the row has the choices' texts.
            **columns: `choices` or `options`, if there, are the texts of the choices in order (or by letter).
        """
        texts = _texts(columns.get("choices", columns.get("options")), self.letters)
        wanted = self._wanted(reference, texts)
        if wanted is None:
            return failed("reference", f"grader 'choice' needs one of {self.letters}, got {reference!r:.80}")
        chosen = self._chosen(visible_part(response, thinking=self.thinking), texts)
        if chosen is None:
            return Score(value=self.unparsed)
        return Score(value=self.right if chosen == wanted else self.wrong, parsed=chosen)

    def _wanted(self, reference: object, texts: dict[str, str]) -> str | None:
        if isinstance(reference, int) and not isinstance(reference, bool):
            return self.letters[reference] if 0 <= reference < len(self.letters) else None
        if not isinstance(reference, str):
            return None
        lone = re.fullmatch(r"\W*([A-Za-z])\W*", _plain(reference))
        if lone is not None and lone[1].upper() in self.letters:
            return lone[1].upper()
        return texts.get(_folded(reference))

    def _chosen(self, text: str, texts: dict[str, str]) -> str | None:
        marked = extract_answer(text, ("box", "tag"))
        if marked is not None:
            return self._letter(marked.text, texts)
        if self.read == "boxed" or "\\boxed" in text:
            return None
        tail = text[-20_000:]
        said = [found for found in _SAYS.finditer(tail) if not _is_article(tail, found)]
        stated = [(found[1] or found[2]).upper() for found in said]
        stated = [letter for letter in stated if letter in self.letters]
        if stated:
            return stated[-1]
        if len(text.strip()) <= 200:
            whole = self._letter(text, texts)
            if whole is not None:
                return whole
        if self.read == "stated":
            return None
        alone = re.findall(rf"(?<![A-Za-z'])\(?([{self.letters}])\)?(?![A-Za-z'])", text[-20_000:])
        return alone[-1] if alone else None

    def _letter(self, answer: str, texts: dict[str, str]) -> str | None:
        """The letter that an answer is or begins with; None when it names several or none."""
        plain = _PREFIX.sub("", _plain(answer))
        if _folded(plain) in texts:
            return texts[_folded(plain)]
        found = re.match(r"[(\[]?\s*([A-Za-z])\s*(?:[)\].:,]|$|\s+(?=\W))", plain)
        if found is None or found[1].upper() not in self.letters:
            return None
        letter, rest = found[1].upper(), plain[found.end() :]
        others = set(
            re.findall(
                rf"(?<![A-Za-z'])\(([{self.letters}])\)|^\s*(?:and|or|,|/)?\s*([{self.letters}])\s*$", rest
            )
        )
        named = {one or other for one, other in others} | {letter}
        return letter if named == {letter} else None


def _is_article(text: str, found: re.Match[str]) -> bool:
    """Whether the letter begins a phrase: "the answer is a matter of taste"."""
    letter = found[1] or ""
    return letter.islower() and re.match(r"\s+\w", text[found.end() :]) is not None


def _texts(choices: object, letters: str) -> dict[str, str]:
    """Letter by folded text of the choice."""
    if isinstance(choices, dict) and isinstance(choices.get("text"), list | tuple):
        choices = choices["text"]
    if isinstance(choices, dict):
        return {_folded(str(text)): str(letter) for letter, text in choices.items()}
    if isinstance(choices, list | tuple):
        return {_folded(str(text)): letter for letter, text in zip(letters, choices, strict=False)}
    return {}


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", _DRESSING.sub(" ", text)).strip()


def _folded(text: str) -> str:
    return re.sub(r"\W+", " ", text.casefold()).strip()
