"""Credit by attention rhythm: which tokens of a response weigh more. Torch-free data.

`advantages/rhythm.py` has the maths and `attention.py` the model that supplies the signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name

RhythmRule = Literal["local", "global", "coupled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How the attention of a response turns into weights of its tokens.

    Rhythm(rule="coupled", tau_waad=0.4, tau_delta=0.2)

    Attributes:
        rule: "local" amplifies where the look-back of local heads changes (planning), "global" the tokens
            that later ones attend to (anchors), "coupled" both, and moves credit from an anchor that
            only follows a plan to the token that began it.
        amplification: Weight of an amplified token, at least 1.
        share: Of the tokens of a response that are amplified, 0 to 1.
        window: Look-back distances count for at most this many tokens.
        nearest: Least distance in tokens at which attention makes an anchor.
        farthest: Greatest such distance; 50 in the first version of the paper, 100 in the later one.
        heads: Share of heads with the shortest spans, and of those with the longest, that are averaged.
        lookback: Tokens before an anchor in which a plan may begin; the paper tries 1 to 3.
        moved: Share of a dominated anchor's amplification that its plan gets, 0 to 1; open in the paper.
        tau_waad: An anchor with a longer look-back is not dominated; open in the paper.
        tau_delta: A plan begins where the look-back changes at least this much; open in the paper.
        both_signs: Scale negative advantages too, as the later version of the paper does.

    Source: "Preplan-and-Anchor", arXiv 2510.13554, eq. 7 to 19.
    """

    rule: RhythmRule
    amplification: float = 1.5
    share: float = 0.4
    window: int = 10
    nearest: int = 10
    farthest: int = 100
    heads: float = 0.3
    lookback: int = 3
    moved: float = 0.5
    tau_waad: float = 0.5
    tau_delta: float = 0.1
    both_signs: bool = True

    def __post_init__(self) -> None:
        if self.rule not in get_args(RhythmRule):
            raise unknown_name("rhythm.rule", self.rule, get_args(RhythmRule))
        for name, value, low, high in (
            ("amplification", self.amplification, 1.0, math.inf),
            ("share", self.share, 0.0, 1.0),
            ("window", self.window, 1, math.inf),
            ("nearest", self.nearest, 0, self.farthest),
            ("heads", self.heads, 0.0, 0.5),
            ("lookback", self.lookback, 1, math.inf),
            ("moved", self.moved, 0.0, 1.0),
        ):
            if not (low <= value <= high and math.isfinite(value)):
                raise LearnerError(f"rhythm.{name} is {value}: allowed is {low} to {high}")
