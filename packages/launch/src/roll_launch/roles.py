"""The roles of a run as the driver sees them: async seams, and the records that cross them.

Pipelines are written against these protocols; `local_runtime.py`, `ray/` and `dry_run.py` each satisfy
them. A `Handle` is whatever stands for data that stays with the workers: the object itself in one process,
a reference under Ray.
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from roll_agentic.samples import RowKind
from roll_learners.algorithm import Algorithm
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rewards import Score
from roll_rollout import EngineLoad, GenerateRequest, WeightReceipt

from roll_launch.config import EngineConfig, GraderConfig, LearnerConfig, OptimizerConfig
from roll_launch.transports import SyncSpec

if TYPE_CHECKING:
    from roll_launch.episode_roles import EnvironmentSpec, EnvironmentWorker
    from roll_launch.side_roles import (
        CriticRole,
        CriticSpec,
        OfflineSpec,
        OfflineTrainer,
        RewardModelRole,
        RewardModelSpec,
        TeacherRole,
        TeacherSpec,
    )

Handle = object

SLOTS_PER_ACTOR = 1024
"""Tickets that a replica holds at once. Engines queue what does not fit their batch, in order, so that the
batches they form do not depend on the timing of the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What a worker needs to build or load the policy.

    ModelSpec(path=Path("runs/q/1/stages/sft/model"), architecture=None, overrides={}, tokenizer=...,
    dtype="float32", seed=0): loaded from `path`, or, where that is None, new weights of `architecture` drawn
    from `seed`.
    """

    path: Path | None
    architecture: str | None
    overrides: Mapping[str, object]
    tokenizer: Path
    dtype: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticsSpec:
    """What the critics of a trainer are built from; each from a seed of its own, counted from the model's."""

    model: ModelSpec
    count: int
    optimizer: OptimizerConfig
    warmup_steps: int
    own: bool = False
    """Whether each is a role of its own; else they are in the trainer's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """What a trainer is built from; `algorithm` is None for supervised stages."""

    model: ModelSpec
    learner: LearnerConfig
    algorithm: Algorithm | None
    temperature: float
    optimizer_steps: int
    seed: int
    threads: int
    critics: CriticsSpec | None = None
    teachers: "tuple[TeacherSpec, ...]" = ()
    samples: RowKind = "trajectory"
    """What of an episode is one training sample."""
    sync: SyncSpec = field(default_factory=SyncSpec)
    resume: Path | None = None
    """A checkpoint whose weights, optimizer and random state to go on from; `model` is still the one that
    the stage began with, of which a reference policy is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """What a rollout replica is built from."""

    model: ModelSpec
    engine: EngineConfig
    max_context: int
    threads: int
    sync: SyncSpec = field(default_factory=SyncSpec)
    record: Path | None = None
    """Directory for a recording of what it generates; None makes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """What a reward worker is built from."""

    tokenizer: Path
    grader: GraderConfig | None
    deadline_s: float
    concurrency: int
    models: "Mapping[str, RewardModelSpec]" = field(default_factory=dict)
    """Reward models that each worker loads, by the names that graders call them."""
    model_names: tuple[str, ...] = ()
    """Of all reward models of the stage, those of processes of their own too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What the driver holds: Rollout(completion=<handle>, versions=((3, 9), (4, 5)), finish="stop").

    `versions` are pairs (policy version, tokens) in token order.
    """

    completion: Handle
    versions: tuple[tuple[int, int], ...]
    finish: str

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(tokens for _, tokens in self.versions)

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled one of them."""
        return min(version for version, _ in self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """One sample of a training batch: its completion by handle, its reward, the group it belongs to, and the
    domain of its prompt."""

    completion: Handle
    reward: float
    group: int
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights ready to be fetched: PublishedWeights(version=4, checksum="xxh3-128:9f..", update=<handle>).

    The handle is or stands for a `roll_rollout.sync.Publication`, or the update itself.
    """

    version: int
    checksum: str
    update: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A sign of life: Pulse(busy=True, progress=5120). A worker that is busy makes progress."""

    busy: bool
    progress: int

    @classmethod
    def of(cls, load: EngineLoad) -> "Pulse":
        """That of an engine: its progress is sampled tokens."""
        return cls(busy=load.running + load.waiting > 0, progress=load.sampled_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """One line of a rollouts file, before its response is decoded by the worker that writes it."""

    step: int
    group: int
    member: int
    seed: int
    prompt: str
    reference: object
    completion: Handle
    tokens: int
    finish: str
    score: float
    reward: float
    parsed: str | None


class Trainer(Protocol):
    """Owns the policy's trained weights."""

    async def policy_step(
        self, samples: Sequence[ScoredRollout], teachers: Sequence[Handle] = ()
    ) -> StepResult:
        """One training step over a batch of scored rollouts.

        Args:
            samples: The batch.
            teachers: Of each teacher that is a role of its own, its log-probs of the batch.
        """
        ...

    async def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        """One supervised step."""
        ...

    async def publish(self, version: int) -> PublishedWeights:
        """Exports the present weights as `version`."""
        ...

    async def probe(self, completion: Handle) -> float:
        """How far a completion's log-probs are from those of the present weights: the greatest |difference|
        over its tokens, nats."""
        ...

    async def save(self, directory: Path, *, state: bool) -> None:
        """Writes a Hugging Face directory, with the optimizer's state beside it if `state`."""
        ...

    async def peak_rss_gb(self) -> float:
        """Peak resident memory of the process that trains."""
        ...


class Actor(Protocol):
    """One rollout replica."""

    async def generate(self, request: GenerateRequest, partial: Handle | None = None) -> Rollout:
        """Generates one completion, or goes on with one of this prompt and seed that was aborted."""
        ...

    def abort(self, request_id: str) -> Coroutine[object, object, None]:
        """Ends a request early; its `generate` returns what there is."""
        ...

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        """Fetches and applies published weights."""
        ...

    async def pulse(self) -> Pulse:
        """Answers at once, whatever it is doing; its progress is sampled tokens."""
        ...


class RewardWorker(Protocol):
    """Turns completions into scores, and writes them down for people."""

    async def grade(self, completion: Handle, reference: object, columns: Mapping[str, object]) -> Score:
        """Grades one completion; a broken grader is a score with a failure, never an exception."""
        ...

    async def serve_models(self, models: Mapping[str, Sequence[Handle]]) -> None:
        """The placed reward models that answer now, by the names that graders call them."""
        ...

    async def record(self, path: Path, records: Sequence[RolloutRecord], *, offset: int) -> int:
        """Writes rollouts into a JSONL file from byte `offset` on, over whatever stands there; returns the
        file's new length. A call that is repeated elsewhere doubles nothing."""
        ...

    async def pulse(self) -> Pulse:
        """Answers at once, whatever it is doing."""
        ...


class Runtime(Protocol):
    """Places roles somewhere. `start_*` returns when the role answers; `close` ends all that it started."""

    async def start_trainer(self, spec: TrainerSpec, critics: "Sequence[CriticRole]" = ()) -> Trainer:
        """A trainer, with the critics that are roles of their own."""
        ...

    async def start_offline_trainer(self, spec: "OfflineSpec") -> "OfflineTrainer":
        """A trainer of given rows."""
        ...

    async def start_teacher(self, name: str, spec: "TeacherSpec") -> "TeacherRole":
        """A teacher in a process of its own."""
        ...

    async def start_critic(self, name: str, spec: "CriticSpec") -> "CriticRole":
        """A critic in a process of its own."""
        ...

    async def start_reward_model(self, name: str, spec: "RewardModelSpec") -> "RewardModelRole":
        """A reward model in a process of its own; one of the same name that is there is ended first."""
        ...

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        """A replica; one of the same name that is there already is ended first."""
        ...

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        """A reward worker; one of the same name that is there already is ended first."""
        ...

    async def start_environment_worker(self, name: str, spec: "EnvironmentSpec") -> "EnvironmentWorker":
        """An environment worker; one of the same name that is there already is ended first."""
        ...

    async def stop_roles(self) -> None:
        """Ends the roles of a stage; the runtime stays usable."""
        ...

    async def close(self) -> None: ...
