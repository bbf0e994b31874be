"""How critics learn and what their agreement decides. Torch-free data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name

Targets = Literal["gae", "monte_carlo"]
Order = Literal["after", "before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticRule:
    """What a step with critics does with them, such as
    `CriticRule(targets="monte_carlo", order="before", agreement=0.2, disagreement=0.2)`.

    Attributes:
        targets: What a critic learns: "gae", advantages + values; "monte_carlo", discounted rewards.
        order: Whether the critics are updated "after" their values are taken, as in PPO, or "before".
        coef: Weight of the squared error; 0.5 in PPO, 1 in AsyPPO.
        value_clip: A value counts as moved by at most this since the step began; above 0, or None.
        agreement: Share of tokens, those on which critics agree most, that are left out of the policy loss.
        disagreement: Share of tokens, those on which critics differ most, that get no entropy bonus.

    Source: AsyPPO, arXiv 2510.01656, for all but the defaults, which are those of PPO.
    """

    targets: Targets = "gae"
    order: Order = "after"
    coef: float = 0.5
    value_clip: float | None = None
    agreement: float = 0.0
    disagreement: float = 0.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("targets", self.targets, get_args(Targets)),
            ("order", self.order, get_args(Order)),
        ):
            if value not in allowed:
                raise unknown_name(f"critic.{name}", value, allowed)
        for name, share in (("agreement", self.agreement), ("disagreement", self.disagreement)):
            if not 0 <= share < 1:
                raise LearnerError(f"critic.{name} is {share}: allowed is at least 0, below 1")
        if not 0 < self.coef < math.inf:
            raise LearnerError(f"critic.coef is {self.coef}: allowed are numbers above 0")
        if self.value_clip is not None and not 0 < self.value_clip < math.inf:
            raise LearnerError(
                f"critic.value_clip is {self.value_clip}: allowed are numbers above 0, or null"
            )
        if self.order == "before" and (self.targets != "monte_carlo" or self.value_clip is not None):
            raise LearnerError(
                "critic.order is 'before': targets must be 'monte_carlo' and value_clip null, since both "
                "others need the values of before the update"
            )

    @property
    def compares(self) -> bool:
        """True if the differences between several critics are used."""
        return self.agreement > 0 or self.disagreement > 0
