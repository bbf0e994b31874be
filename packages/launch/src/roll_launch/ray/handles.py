"""What pipelines hold of Ray actors: hand-written proxies that await, and that say who failed and why."""

import re
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rewards import Score
from roll_rollout import EngineError, GenerateRequest, WeightReceipt

from roll_launch.failures import RoleDied, RoleError
from roll_launch.roles import (
    ActorSpec,
    Handle,
    PublishedWeights,
    Pulse,
    RewardSpec,
    Rollout,
    RolloutRecord,
    ScoredRollout,
    TrainerSpec,
)

Result = TypeVar("Result")

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colours, which Ray puts into tracebacks."""

DEATHS = (RayActorError, OutOfMemoryError, NodeDiedError, WorkerCrashedError)
"""What Ray raises when the process behind a call is gone; not all of them are actor errors to Ray."""

Remote = Any
"""A Ray actor handle: it has the methods of a class in `actors.py`, each with `.remote`."""


class RayTrainer:
    """`Trainer` in an actor."""

    def __init__(self, actor: Remote) -> None:
        self._actor = actor

    async def start(self, spec: TrainerSpec, critics: Sequence[Handle] = ()) -> None:
        await answer("trainer", "start", self._actor.start.remote(spec, list(critics)))

    async def policy_step(
        self, samples: Sequence[ScoredRollout], teachers: Sequence[Handle] = ()
    ) -> StepResult:
        reference = self._actor.policy_step.remote(
            [sample.completion for sample in samples],
            [sample.reward for sample in samples],
            [sample.group for sample in samples],
            [sample.domain for sample in samples],
            list(teachers),
        )
        return await answer("trainer", "policy_step", reference)

    async def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        return await answer("trainer", "supervised_step", self._actor.supervised_step.remote(list(samples)))

    async def publish(self, version: int) -> PublishedWeights:
        update, checksum = self._actor.publish.remote(version)
        return PublishedWeights(
            version=version, checksum=await answer("trainer", "publish", checksum), update=update
        )

    async def probe(self, completion: Handle) -> float:
        return await answer("trainer", "probe", self._actor.probe.remote(completion))

    async def save(self, directory: Path, *, state: bool) -> None:
        await answer("trainer", "save", self._actor.save.remote(directory, state))

    async def peak_rss_gb(self) -> float:
        return await answer("trainer", "peak_rss_gb", self._actor.peak_rss_gb.remote())


class RayActor:
    """`Actor` (a rollout replica) in an actor; completions stay in the object store."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    @property
    def remote(self) -> Remote:
        """What environment workers call it by."""
        return self._actor

    async def start(self, spec: ActorSpec) -> None:
        await answer(self._name, "start", self._actor.start.remote(self._name, spec))

    async def generate(self, request: GenerateRequest, partial: Handle | None = None) -> Rollout:
        facts, completion = self._actor.generate.remote(request, partial)
        versions, finish = await answer(self._name, "generate", facts)
        return Rollout(completion=completion, versions=versions, finish=finish)

    async def abort(self, request_id: str) -> None:
        await answer(self._name, "abort", self._actor.abort.remote(request_id))

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        return await answer(self._name, "update_weights", self._actor.update_weights.remote(published.update))

    async def pulse(self) -> Pulse:
        return await answer(self._name, "pulse", self._actor.pulse.remote())


class RayRewardWorker:
    """`RewardWorker` in an actor."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor

    async def start(self, spec: RewardSpec) -> None:
        await answer(self._name, "start", self._actor.start.remote(spec))

    async def grade(self, completion: Handle, reference: object, columns: Mapping[str, object]) -> Score:
        return await answer(
            self._name, "grade", self._actor.grade.remote(completion, reference, dict(columns))
        )

    async def serve_models(self, models: Mapping[str, Sequence[Handle]]) -> None:
        reference = self._actor.serve_models.remote({name: list(each) for name, each in models.items()})
        await answer(self._name, "serve_models", reference)

    async def record(self, path: Path, records: Sequence[RolloutRecord], *, offset: int) -> int:
        completions = [record.completion for record in records]
        return await answer(
            self._name, "record", self._actor.record.remote(path, records, completions, offset)
        )

    async def pulse(self) -> Pulse:
        return await answer(self._name, "pulse", self._actor.pulse.remote())


async def answer(role: str, method: str, reference: Awaitable[Result]) -> Result:
    """Awaits a call on an actor.

    Raises:
        EngineError: As the engine raised it; the driver treats it as the failure of one request.
        RoleDied: The actor's process is gone.
        RoleError: The call raised anything else; carries the worker's traceback. What the worker itself says
            of a role that it asked is raised as it is.
    """
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else None
        if isinstance(cause, EngineError | RoleError):
            raise cause from None
        said = f"{type(cause).__name__}: {cause}" if cause is not None else str(error).splitlines()[-1]
        raise RoleError(role, method, said, detail=COLOUR.sub("", str(error))) from None
    except DEATHS as error:
        raise RoleDied(role, method, why_it_died(error)) from None
    except RayError as error:
        raise RoleError(role, method, f"{type(error).__name__}: {why_it_died(error)}") from None


def kill(actor: Remote) -> None:
    """Ends an actor's process now; one that is already gone is fine."""
    ray.kill(actor)


def why_it_died(error: RayError) -> str:
    """Ray's message in one line, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "exit" in line.lower() or "killed" in line.lower() or "OOM" in line]
    return " ".join((telling or lines)[:2])[:400]
