"""Roles beside policy, engines and graders, as the driver sees them: trainers of given rows, teachers, placed
critics and placed reward models.

As in `roles.py` a `Handle` stands for data that stays with the workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from roll_learners.distillation import Distillation
from roll_learners.preference import Kto, Preference
from roll_learners.sample import Sample
from roll_learners.update import StepResult

from roll_launch.config import OptimizerConfig, RewardModelRule
from roll_launch.roles import Handle, ModelSpec, PublishedWeights, Pulse, TrainerSpec

OfflineRule = Preference | Kto | RewardModelRule | Distillation


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSpec:
    """What a teacher is built from, and what it is for.

    Attributes:
        model: Its weights.
        own: Whether it is a role of its own; else it is in the trainer's process.
        weight: Of its divergence or KL estimate.
        estimator: Of the KL, on tokens that the policy sampled.
        domains: Samples with one of these tags learn from it; None for all.
        top_k: Logits a token that distillation compares; None for whole distributions.
        once: Whether what was computed of a sample is kept.
        temperature: Divides the logits of log-probs.
        micro_batch_tokens: Most tokens in one pass.
        device: Where it computes.
        threads: Of a role of its own.
    """

    model: ModelSpec
    own: bool
    weight: float
    estimator: str = "k1"
    domains: frozenset[str] | None = None
    top_k: int | None = None
    once: bool = False
    temperature: float = 1.0
    micro_batch_tokens: int
    device: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSpec:
    """What a trainer of given rows is built from.

    Attributes:
        trainer: Model, learner and optimizer; without an algorithm.
        rule: What is computed.
        once: Whether the reference's log-probs are computed before the first step.
        teachers: Of a distillation.
    """

    trainer: TrainerSpec
    rule: OfflineRule
    once: bool = False
    teachers: tuple[TeacherSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSpec:
    """What one placed critic is built from; `resume` is the file that a checkpoint has of it."""

    model: ModelSpec
    optimizer: OptimizerConfig
    optimizer_steps: int
    micro_batch_tokens: int
    device: str
    threads: int
    resume: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSpec:
    """What a placed reward model is built from."""

    path: Path
    dtype: Literal["float32", "bfloat16"]
    device: str
    threads: int
    max_batch: int
    wait_s: float
    max_tokens: int


class OfflineTrainer(Protocol):
    """Trains on rows that are given, without rollouts.

    Samples of pairs come as all chosen responses followed by all rejected ones; of single responses a reward
    above 0 says that one is desirable.
    """

    async def prepare(self, samples: Sequence[Sample], *, last: bool) -> None:
        """Computes what is needed of samples that will come; after the `last` call nothing more is."""
        ...

    async def step(self, samples: Sequence[Sample], signals: Sequence[Handle]) -> StepResult:
        """One update; `signals` are those of each teacher that is a role of its own, in order."""
        ...

    async def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """What the present weights say of samples that are not trained on."""
        ...

    async def publish(self, version: int) -> PublishedWeights:
        """See `Trainer`."""
        ...

    async def probe(self, completion: Handle) -> float:
        """See `Trainer`."""
        ...

    async def save(self, directory: Path, *, state: bool) -> None:
        """See `Trainer`."""
        ...

    async def peak_rss_gb(self) -> float:
        """See `Trainer`."""
        ...


class TeacherRole(Protocol):
    """A teacher in a process of its own."""

    async def top_logits(self, samples: Sequence[Sample]) -> Handle:
        """The greatest logits at each trained token of each sample."""
        ...

    async def logprobs(self, completions: Sequence[Handle]) -> Handle:
        """Its log-prob of each sampled token of each completion."""
        ...


class CriticRole(Protocol):
    """A critic in a process of its own, which the trainer asks; the driver only holds it."""

    @property
    def handle(self) -> Handle:
        """What the trainer calls it by."""
        ...


class RewardModelRole(Protocol):
    """A reward model in a process of its own, which reward workers ask; the driver only watches it."""

    @property
    def handle(self) -> Handle:
        """What reward workers call it by."""
        ...

    async def pulse(self) -> Pulse:
        """Answers at once, whatever it is doing."""
        ...


def critic_file(number: int) -> str:
    """Where a checkpoint has critic `number`."""
    return f"critic_{number}.pt"


def critic_specs(spec: TrainerSpec, *, threads: int) -> list[CriticSpec]:
    """Of each critic of a trainer, from a seed of its own; none for algorithms without."""
    critics = spec.critics
    if critics is None:
        return []
    return [
        CriticSpec(
            model=replace(critics.model, seed=critics.model.seed + number),
            optimizer=critics.optimizer,
            optimizer_steps=spec.optimizer_steps,
            micro_batch_tokens=spec.learner.micro_batch_tokens,
            device=spec.learner.device,
            threads=threads,
            resume=spec.resume and spec.resume / critic_file(number),
        )
        for number in range(critics.count)
    ]
