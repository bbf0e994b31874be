"""Grader `repetition`: a penalty for saying the same again."""

from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.scores import Score
from roll_rewards.text.overlap import words


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """`-scale` times the fraction of n-grams that stood before in the response, so -scale..0.

    Example: `Repetition(ngram=3, scale=0.5)`.

    Attributes:
        ngram: Words in a phrase, at least 1.
        scale: The largest penalty, at least 0.
        allowed: Fraction that costs nothing, 0..1; beyond it the penalty rises from 0.

    Raises:
        RewardError: An option is out of its range.

    Source: Demystifying long chain-of-thought reasoning (arXiv 2502.03373), n-gram repetition penalty.
    Differs: One number for the response, not one for each token; Chinese, Japanese and Korean characters are
        words.
    """

    ngram: int = 3
    scale: float = 1.0
    allowed: float = 0.0

    def __post_init__(self) -> None:
        if self.ngram < 1 or not 0 <= self.scale < float("inf") or not 0 <= self.allowed < 1:
            raise RewardError(
                "grader 'repetition' needs ngram >= 1, scale >= 0 and 0 <= allowed < 1, "
                f"got {self.ngram}, {self.scale} and {self.allowed}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The penalty; the part `repeated` is the fraction of repeated n-grams. See `Grader.grade`."""
        said = words(response)
        grams = [tuple(said[start : start + self.ngram]) for start in range(len(said) - self.ngram + 1)]
        repeated = 1 - len(set(grams)) / len(grams) if grams else 0.0
        excess = max(0.0, repeated - self.allowed) / (1 - self.allowed)
        return Score(value=-self.scale * excess + 0.0, parts={"repeated": repeated})
