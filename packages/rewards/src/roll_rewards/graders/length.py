"""Graders `length` and `cosine_length`: rewards for how long a response is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from roll_rewards.cosine import cosine_length_reward
from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.graders.nesting import nested_grader
from roll_rewards.scores import Score
from roll_rewards.text.overlap import words

Unit = Literal["tokens", "words", "characters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """1 between `shortest` and `longest`, falling to 0 over `margin` on both sides.

    Example: `Length(unit="words", shortest=100, longest=400, margin=100)`.

    Attributes:
        unit: What is counted; `tokens` needs the column `tokens` with their number.
        shortest: First full length, at least 0.
        longest: Last full length; None is no limit.
        margin: Width of the slopes, at least 0; with 0 the score is 0 or 1.

    Raises:
        RewardError: The lengths do not fit each other; when grading, the column is missing.
    """

    unit: Unit = "words"
    shortest: int = 0
    longest: int | None = None
    margin: int = 0

    def __post_init__(self) -> None:
        if (
            self.shortest < 0
            or self.margin < 0
            or (self.longest is not None and self.longest < self.shortest)
        ):
            raise RewardError(
                "grader 'length' needs 0 <= shortest <= longest and margin >= 0, "
                f"got {self.shortest}, {self.longest} and {self.margin}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The reward; the part `length` is what was counted. See `Grader.grade`."""
        length = measured(response, self.unit, columns)
        beyond = max(self.shortest - length, 0 if self.longest is None else length - self.longest, 0)
        value = float(beyond == 0) if self.margin == 0 else max(0.0, 1 - beyond / self.margin)
        return Score(value=value, parts={"length": float(length)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineLength:
    """The cosine length reward over another grader's verdict; see `cosine_length_reward`.

    Example: `CosineLength(grader={"name": "math"}, max_length=4096, unit="tokens")`.

    Attributes:
        grader: Says what is right: a value of at least `right_from`.
        max_length: Limit in units, above 0.
        unit: What is counted; `tokens` needs the column `tokens` with their number.
        right_from: Lowest value of a right answer.
        correct_short: See `cosine_length_reward`, like the next four.
        correct_long: See `cosine_length_reward`.
        wrong_short: See `cosine_length_reward`.
        wrong_long: See `cosine_length_reward`.
        exceeded: See `cosine_length_reward`.

    Raises:
        RewardError: The grader cannot be made, or the limit is not above 0.
    """

    grader: Grader | Mapping[str, object]
    max_length: int
    unit: Unit = "words"
    right_from: float = 1.0
    correct_short: float = 2.0
    correct_long: float = 1.0
    wrong_short: float = -10.0
    wrong_long: float = 0.0
    exceeded: float = -10.0

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise RewardError(
                f"option 'max_length' of 'cosine_length' must be above 0, got {self.max_length}"
            )
        made = nested_grader(self.grader, where="option 'grader' of grader 'cosine_length'")
        object.__setattr__(self, "grader", made)

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The shaped reward; the part `verdict` is the inner grader's value. See `Grader.grade`."""
        inner = nested_grader(self.grader, where="cosine_length")
        score = await inner.grade(response, reference, **columns)
        if score.failure is not None:
            return score
        length = measured(response, self.unit, columns)
        shaped = cosine_length_reward(
            np.array([length]),
            np.array([score.value >= self.right_from]),
            max_length=self.max_length,
            correct_short=self.correct_short,
            correct_long=self.correct_long,
            wrong_short=self.wrong_short,
            wrong_long=self.wrong_long,
            exceeded=self.exceeded,
        )
        parts = {**score.parts, "verdict": score.value, "length": float(length)}
        return replace(score, value=float(shaped[0]), parts=parts)


def measured(response: str, unit: Unit, columns: Mapping[str, object]) -> int:
    """How long a response is.

    Raises:
        RewardError: Tokens are asked for and the column `tokens` is no count.
    """
    if unit == "characters":
        return len(response)
    if unit == "words":
        return len(words(response))
    tokens = columns.get("tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise RewardError(f"unit 'tokens' needs the column 'tokens' with their number, got {tokens!r:.80}")
    return tokens
