"""What pipelines hold of the actors in `side_actors.py`: hand-written proxies that await."""

from collections.abc import Sequence
from pathlib import Path

from roll_learners.sample import Sample
from roll_learners.update import StepResult

from roll_launch.ray.handles import Remote, answer
from roll_launch.ray.side_actors import AskedCritic, AskedRewardModel
from roll_launch.roles import Handle, PublishedWeights, Pulse
from roll_launch.side_roles import CriticSpec, OfflineSpec, RewardModelSpec, TeacherSpec


class RayOfflineTrainer:
    """`OfflineTrainer` in an actor."""

    def __init__(self, actor: Remote) -> None:
        self._actor = actor

    async def start(self, spec: OfflineSpec) -> None:
        await answer("trainer", "start", self._actor.start.remote(spec))

    async def prepare(self, samples: Sequence[Sample], *, last: bool) -> None:
        await answer("trainer", "prepare", self._actor.prepare.remote(list(samples), last))

    async def step(self, samples: Sequence[Sample], signals: Sequence[Handle]) -> StepResult:
        return await answer("trainer", "step", self._actor.step.remote(list(samples), list(signals)))

    async def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        return await answer("trainer", "evaluate", self._actor.evaluate.remote(list(samples)))

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


class RayTeacher:
    """`TeacherRole` in an actor; its handles are references into the object store."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor

    async def start(self, spec: TeacherSpec) -> None:
        await answer(self._name, "start", self._actor.start.remote(spec))

    async def top_logits(self, samples: Sequence[Sample]) -> Handle:
        done, data = self._actor.top_logits.remote(list(samples))
        await answer(self._name, "top_logits", done)
        return data

    async def logprobs(self, completions: Sequence[Handle]) -> Handle:
        done, data = self._actor.logprobs.remote(list(completions))
        await answer(self._name, "logprobs", done)
        return data


class RayCritic:
    """`CriticRole` in an actor; its handle goes to the trainer's actor."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor
        self.handle: Handle = AskedCritic(name, actor)

    async def start(self, spec: CriticSpec) -> None:
        await answer(self._name, "start", self._actor.start.remote(spec))


class RayRewardModel:
    """`RewardModelRole` in an actor; its handle goes to the reward workers' actors."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor
        self.handle: Handle = AskedRewardModel(name, actor)

    async def start(self, spec: RewardModelSpec) -> None:
        await answer(self._name, "start", self._actor.start.remote(spec))

    async def pulse(self) -> Pulse:
        return await answer(self._name, "pulse", self._actor.pulse.remote())
