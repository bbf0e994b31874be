"""How training corrects for an engine that sampled from slightly other probabilities than the learner's.

Torch-free data; `mismatch.py` has the maths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name

Granularity = Literal["none", "token", "turn", "geometric", "sequence"]
Denominator = Literal["original", "surviving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Weights and rejections by the ratio learner / engine at the weights with which the step began, such as
    `Correction(weight="token", cap=2.0)`, which is TIS.

    Attributes:
        weight: What the policy loss of a token is multiplied by: "none"; the ratio of the "token"; of its
            "turn" or of the whole sequence ("geometric") as a geometric mean; or their product ("sequence").
        cap: A weight is at most this; above 0, or None.
        reject: The ratio by which tokens are left out of the policy loss: one of the above.
        low: A lower ratio is rejected; at least 0.
        high: A higher ratio is rejected; above low, or None.
        max_gap: A token whose two probabilities differ by more is rejected; 0 to 1, or None.
        denominator: "original" divides the loss by all tokens, rejected ones too; "surviving" by those that
            are left, for which the log-probs of the whole batch are computed first.
    """

    weight: Granularity = "none"
    cap: float | None = None
    reject: Granularity = "none"
    low: float = 0.0
    high: float | None = None
    max_gap: float | None = None
    denominator: Denominator = "original"

    def __post_init__(self) -> None:
        for name, value in (("weight", self.weight), ("reject", self.reject)):
            if value not in get_args(Granularity):
                raise unknown_name(f"correction.{name}", value, get_args(Granularity))
        if self.denominator not in get_args(Denominator):
            raise unknown_name("correction.denominator", self.denominator, get_args(Denominator))
        self._check_number("cap", self.cap, above=0.0)
        self._check_number("max_gap", self.max_gap, above=0.0, most=1.0)
        if not 0 <= self.low < math.inf:
            raise LearnerError(f"correction.low is {self.low}: allowed is at least 0")
        self._check_number("high", self.high, above=self.low)
        if self.cap is not None and self.weight == "none":
            raise LearnerError(f"correction.cap is {self.cap} but correction.weight is 'none'")
        if self.reject == "none" and (self.low or self.high is not None):
            raise LearnerError(
                f"correction.low is {self.low} and high {self.high} but correction.reject is 'none'"
            )
        if self.reject != "none" and not self.low and self.high is None:
            raise LearnerError(f"correction.reject is {self.reject!r} but neither low nor high is set")
        if self.denominator == "surviving" and not self.rejects:
            raise LearnerError("correction.denominator is 'surviving' but nothing is rejected")

    @property
    def corrects(self) -> bool:
        """True if any token could get another weight than 1."""
        return self.weight != "none" or self.rejects

    @property
    def rejects(self) -> bool:
        """True if any token could be left out."""
        return self.reject != "none" or self.max_gap is not None

    @property
    def needs_turns(self) -> bool:
        """True if a ratio of turns is used."""
        return "turn" in (self.weight, self.reject)

    def _check_number(self, name: str, value: float | None, *, above: float, most: float = math.inf) -> None:
        if value is not None and not (above < value <= most and math.isfinite(value)):
            bound = f"above {above}" + (f", at most {most}" if math.isfinite(most) else "")
            raise LearnerError(f"correction.{name} is {value}: allowed is {bound}, or null")
