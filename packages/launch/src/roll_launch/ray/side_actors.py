"""What runs in Ray actors beside policy, engines and graders, and how those ask it.

Each actor holds one role's worker. Trainers ask critics, and reward workers ask reward models, directly.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import ray
from ray import ObjectRef
from roll_learners.sample import Sample
from roll_learners.segments import Totals
from roll_learners.update import StepResult, UpdateResult
from roll_rollout import Completion
from roll_rollout.sync import Publication

from roll_launch.failures import RoleDied
from roll_launch.ray.handles import DEATHS, Remote, answer, why_it_died
from roll_launch.ray.object_store import RayObjectStore
from roll_launch.roles import Pulse
from roll_launch.side_roles import CriticSpec, OfflineSpec, RewardModelSpec, TeacherSpec

Data = TypeVar("Data")


class OfflineActor:
    """A trainer of given rows in a process of its own. Blocking methods, one at a time."""

    def start(self, spec: OfflineSpec) -> None:
        from roll_launch.workers.offline import offline_worker

        self._worker = offline_worker(spec, RayObjectStore())

    def prepare(self, samples: Sequence[Sample], last: bool) -> None:
        self._worker.prepare(samples, last)

    def step(self, samples: Sequence[Sample], signals: "list[ObjectRef[Any]]") -> StepResult:
        return self._worker.step(samples, ray.get(signals))

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        return self._worker.evaluate(samples)

    @ray.method(num_returns=2)
    def publish(self, version: int) -> tuple[Publication, str]:
        return self._worker.publish(version)

    def probe(self, completion: Completion) -> float:
        return self._worker.probe(completion)

    def save(self, directory: Path, state: bool) -> None:
        self._worker.save(directory, state)

    def peak_rss_gb(self) -> float:
        return self._worker.peak_rss_gb()


class TeacherActor:
    """A teacher in a process of its own. What it computes stays in the object store."""

    def start(self, spec: TeacherSpec) -> None:
        from roll_launch.workers.teacher import TeacherWorker

        self._worker = TeacherWorker(spec)

    @ray.method(num_returns=2)
    def top_logits(self, samples: Sequence[Sample]) -> tuple[None, object]:
        return None, self._worker.top_logits(samples)

    @ray.method(num_returns=2)
    def logprobs(self, completions: "list[ObjectRef[Completion]]") -> tuple[None, object]:
        return None, self._worker.logprobs(ray.get(completions))


class CriticActor:
    """A critic in a process of its own, asked by the trainer."""

    def start(self, spec: CriticSpec) -> None:
        from roll_launch.workers.critic import CriticWorker

        self._worker = CriticWorker(spec, alone=True)

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        return self._worker.values(samples)

    def update(
        self,
        samples: Sequence[Sample],
        objective: Any,
        totals: Totals | None,
        indices: Sequence[int] | None,
        columns: Mapping[str, Any],
    ) -> UpdateResult:
        return self._worker.update(samples, objective, totals=totals, indices=indices, **columns)

    def save(self, path: Path) -> None:
        self._worker.save(path)


class RewardModelActor:
    """A reward model in a process of its own; its event loop has many scores open at once."""

    async def start(self, spec: RewardModelSpec) -> None:
        from roll_launch.workers.reward_model import RewardModelWorker

        self._worker = RewardModelWorker(spec)

    async def score(self, conversation: Sequence[dict[str, str]]) -> float:
        return await self._worker.score(conversation)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=self._worker.scored)


class AskedCritic:
    """A critic's actor as the trainer asks it: blocking calls. `workers.critic.SavedCritic`."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name, self._actor = name, actor

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        return self._wait("values", self._actor.values.remote(samples))

    def update(
        self,
        samples: Sequence[Sample],
        objective: Any,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Any,
    ) -> UpdateResult:
        reference: ObjectRef[UpdateResult] = self._actor.update.remote(
            samples, objective, totals, indices, columns
        )
        return self._wait("update", reference)

    def save(self, path: Path) -> None:
        self._wait("save", self._actor.save.remote(path))

    def _wait(self, method: str, reference: "ObjectRef[Data]") -> Data:
        try:
            return ray.get(reference)
        except DEATHS as error:
            raise RoleDied(self._name, method, why_it_died(error)) from None


class AskedRewardModel:
    """A reward model's actor as a reward worker asks it: `roll_rewards.ConversationScorer`."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name, self._actor = name, actor

    async def score(self, conversation: Sequence[Mapping[str, str]]) -> float:
        reference = self._actor.score.remote([dict(message) for message in conversation])
        return await answer(self._name, "score", reference)
