"""The models that a policy-gradient step may use beside the learner and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from roll_learners.attention import AttentionSource
from roll_learners.critic import Critic
from roll_learners.kl_controller import KlController
from roll_learners.learner import LogprobSource
from roll_learners.sample import Sample


@runtime_checkable
class StateSource(Protocol):
    """A reference beside the learner that can give its whole distribution; `LocalScorer` is one."""

    temperature: float

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """[N, H] for each sample, from which `logits` makes each trained token's distribution."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """[N, V] at states[N, H], before any temperature."""
        ...


def state_source(model: object) -> StateSource | None:
    """The model, if it gives whole distributions."""
    return model if isinstance(model, StateSource) else None


class Teacher(NamedTuple):
    """A teacher of on-policy distillation.

    Attributes:
        source: Scores the tokens that the student sampled.
        coef: Weight of its KL estimate in the advantage.
        estimator: "k1" or "k3".
        tags: Samples with one of these tags learn from it; None for all samples.
    """

    source: LogprobSource
    coef: float = 1.0
    estimator: str = "k1"
    tags: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Models beside the learner and the reference.

    Attributes:
        critics: For the advantage "gae": one, or several among which the responses are dealt.
        critics_apart: They compute in other processes, so that they may run beside each other and, where they
            learn after their values are taken, beside the policy. The numbers are the same.
        teachers: Their KL is subtracted from every advantage.
        attention: Needed if the algorithm has a rhythm.
        kl: Holds the weight of a KL in the reward; None if it has no target.
        update_actor: False updates the critics alone, to warm them up.
    """

    critics: Sequence[Critic] = ()
    critics_apart: bool = False
    teachers: Sequence[Teacher] = ()
    attention: AttentionSource | None = None
    kl: KlController | None = None
    update_actor: bool = True
