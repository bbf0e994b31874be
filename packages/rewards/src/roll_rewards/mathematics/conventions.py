"""What counts as the same answer where people differ: each question is an option with a default."""

from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError

Percent = Literal["either", "hundredth", "ignore"]
Units = Literal["match", "convert", "ignore", "require"]
Rounding = Literal["exact", "rounded"]
Unreduced = Literal["accept", "reject"]
Unevaluated = Literal["accept", "reject"]
Order = Literal["any", "same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """The open questions of comparing answers.

    Example: `Conventions(percent="hundredth", rounding="rounded")`.

    Attributes:
        percent: Whether 50 % is 0.5 and also 50 (`either`), 0.5 alone (`hundredth`), or 50 (`ignore`).
        units: Where both sides have a unit, it must be the same (`match`), or one that converts
            (`convert`: 1 m is 100 cm), or does not matter (`ignore`). A unit on one side alone is left out of
            account, but for `require`: then the response must have the reference's.
        rounding: Decimals are exact (`exact`), or stand for what rounds to them (`rounded`: 0.333 is 1/3 from
            three significant digits on; a reference of 2.7 takes 2.718).
        rel_tolerance: Largest accepted distance divided by the reference's size, at least 0.
        unreduced: Whether 2/4 passes for 1/2.
        unevaluated: Whether 17 * 23, 2^10 or 5! passes for a reference that is a plain number.
        order: Whether several answers may come in `any` order; components of a tuple never may.
    """

    percent: Percent = "either"
    units: Units = "match"
    rounding: Rounding = "exact"
    rel_tolerance: float = 0.0
    unreduced: Unreduced = "accept"
    unevaluated: Unevaluated = "accept"
    order: Order = "any"

    def __post_init__(self) -> None:
        if not 0 <= self.rel_tolerance < 1:
            raise RewardError(f"'rel_tolerance' must be at least 0 and below 1, got {self.rel_tolerance}")
