"""Grader `exact`: the answer is the reference, character by character."""

from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.reference import accepted_texts
from roll_rewards.scores import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """1 if the answer equals the reference (or one of several), else 0.

    Example: `Exact(after=";")` reads `abc` from the response `cb;bca;abc`.

    Attributes:
        after: The answer is what follows the last occurrence of this text; when the response does
            not contain it, or when it is None, the answer is the whole response.
        strip: Ignore white space around answer and reference.
        case_sensitive: Whether `A` differs from `a`.

    Raises:
        RewardError: `after` is empty, or (when grading) the reference is not text.
    """

    after: str | None = None
    strip: bool = True
    case_sensitive: bool = True

    def __post_init__(self) -> None:
        if self.after == "":
            raise RewardError("option 'after' of grader 'exact' must not be empty; null leaves it out")

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` is the text that was compared. See `Grader.grade`."""
        answer = response
        if self.after is not None:
            answer = response.rpartition(self.after)[2]
        parsed = self._normal(answer)
        accepted = {self._normal(text) for text in accepted_texts(reference, grader="exact")}
        return Score(value=float(parsed in accepted), parsed=parsed)

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text if self.case_sensitive else text.casefold()
