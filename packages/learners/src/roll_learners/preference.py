"""Learning from preferences, as data. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from roll_learners.errors import LearnerError, unknown_name
from roll_learners.registry import PREFERENCE_LOSSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """What a step on pairs of a chosen and a rejected response computes.

    Preference(loss="dpo", options={"beta": 0.1, "label_smoothing": 0.1})

    Attributes:
        loss: A name in `PREFERENCE_LOSSES`.
        average: Log-probs of responses are means over their tokens, not sums.
        nll_coef: Weight of the chosen responses' mean negative log-likelihood, added to the loss.
        options: Hyper-parameters of the loss.
    """

    loss: str = "dpo"
    average: bool = False
    nll_coef: float = 0.0
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = PREFERENCE_LOSSES.part(self.loss).parameters
        for key in self.options:
            if key not in known:
                raise unknown_name(f"option of preference loss {self.loss!r}", key, known)
        missing = sorted(key for key, needed in known.items() if needed and key not in self.options)
        if missing:
            raise LearnerError(f"preference loss {self.loss!r} lacks {', '.join(missing)}")
        if self.nll_coef < 0:
            raise LearnerError(f"preference.nll_coef is {self.nll_coef}: allowed is at least 0")
        smoothing = self.options.get("label_smoothing", 0.0)
        if not 0 <= smoothing <= 0.5 or (self.loss == "robust_dpo" and smoothing == 0.5):
            raise LearnerError(
                f"preference label_smoothing is {smoothing}: allowed is 0 to 0.5"
                + (", below 0.5 for 'robust_dpo'" if self.loss == "robust_dpo" else "")
            )

    @property
    def needs_reference(self) -> bool:
        """True if the loss compares the policy with a reference."""
        return self.loss not in REFERENCE_FREE


REFERENCE_FREE = frozenset({"simpo", "orpo"})

PREFERENCES: Mapping[str, Preference] = MappingProxyType(
    {
        "dpo": Preference(options={"beta": 0.1}),
        "cdpo": Preference(options={"beta": 0.1, "label_smoothing": 0.1}),
        "robust_dpo": Preference(loss="robust_dpo", options={"beta": 0.1, "label_smoothing": 0.1}),
        "hinge": Preference(loss="hinge", options={"beta": 0.1}),
        "ipo": Preference(loss="ipo", average=True, options={"beta": 0.1}),
        "ipo_sum": Preference(loss="ipo", options={"beta": 0.1}),
        "simpo": Preference(loss="simpo", average=True, options={"beta": 2.0, "gamma": 1.0}),
        "orpo": Preference(loss="orpo", average=True, options={"coef": 0.1}),
    }
)
"""Preferences by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kto:
    """What `kto_step` computes on single responses that are desirable or not.

    Attributes:
        beta: Above 0.
        desirable_weight: At least 0.
        undesirable_weight: At least 0.
    """

    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.beta > 0 or self.desirable_weight < 0 or self.undesirable_weight < 0:
            raise LearnerError(f"{self}: allowed are beta above 0 and weights of at least 0")
