"""What a student learns from teachers, as data. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name
from roll_learners.registry import DIVERGENCES

TopMass = Literal["renormalised", "student_full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """What a student learns from teachers, such as
    `Distillation(divergence="generalised_js", options={"beta": 0.9}, weight=1.0)`.

    Attributes:
        divergence: A name in `DIVERGENCES`.
        temperature: Divides the logits of student and teachers; above 0. No factor T^2 is applied.
        weight: Of the divergence; the rest, 1 - weight, is that of the negative log-likelihood. 0 to 1.
        top_k: Tokens of each teacher's distribution that are compared, or None for all.
        top_mass: Under `top_k`: "renormalised" takes student and teacher over those tokens alone;
            "student_full" the student over the whole vocabulary.
        vocabulary: Compare the first tokens only, where the models' vocabularies are padded to different
            sizes; None for models of one size.
        options: Hyper-parameters of the divergence.
    """

    divergence: str = "forward_kl"
    temperature: float = 1.0
    weight: float = 0.5
    top_k: int | None = None
    top_mass: TopMass = "renormalised"
    vocabulary: int | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = DIVERGENCES.part(self.divergence).parameters
        for key in self.options:
            if key not in known:
                raise unknown_name(f"option of divergence {self.divergence!r}", key, [*known] or ["none"])
        if self.top_mass not in get_args(TopMass):
            raise unknown_name("distillation.top_mass", self.top_mass, get_args(TopMass))
        if not self.temperature > 0:
            raise LearnerError(f"distillation.temperature is {self.temperature}: allowed is above 0")
        if not 0 <= self.weight <= 1:
            raise LearnerError(f"distillation.weight is {self.weight}: allowed is 0 to 1")
        for name, count in (("top_k", self.top_k), ("vocabulary", self.vocabulary)):
            if count is not None and count < 1:
                raise LearnerError(f"distillation.{name} is {count}: at least 1, or null")
