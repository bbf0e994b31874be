"""What a simulation is about: the work, the devices and their speeds. The same for every policy."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.prompts.traits import PromptTraits
from roll_scheduler.simulator.engine_model import EngineModel
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.lengths import Lengths
from roll_scheduler.simulator.noise import NoiseTable

__all__ = ["Latency", "Outcomes", "ReplicaFailure", "Setting", "Trainer", "Workload"]

NO_DEADLINE_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Normally distributed seconds, cut at 0, for example `Latency(mean_s=10, std_s=5)`.

    Attributes:
        mean_s: Mean before the cut, >= 0.
        std_s: Standard deviation before the cut, >= 0.
    """

    mean_s: float = 0.0
    std_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("mean_s", self.mean_s), ("std_s", self.std_s)):
            if not math.isfinite(value) or value < 0:
                raise SimulationError(f"Latency.{name}: got {value!r}, allowed is >= 0")

    @property
    def is_none(self) -> bool:
        """Whether it is always 0."""
        return self.mean_s == 0 and self.std_s == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Rewards, as far as group filters care.

    Attributes:
        never: Share of prompts whose completions all get 0.
        always: Share of prompts whose completions all get 1. In the other groups rewards alternate.
    """

    never: float = 0.0
    always: float = 0.0

    def __post_init__(self) -> None:
        if not (self.never >= 0 and self.always >= 0 and self.never + self.always <= 1):
            raise SimulationError(
                f"Outcomes: got never={self.never!r}, always={self.always!r}, allowed are shares >= 0 with a "
                "sum <= 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFailure:
    """A replica that dies.

    Attributes:
        replica: Index of the replica.
        at_s: When, > 0.
        back_s: When it is there again, > `at_s`; None is never.
    """

    replica: int
    at_s: float
    back_s: float | None = None

    def __post_init__(self) -> None:
        if not self.at_s > 0 or (self.back_s is not None and not self.back_s > self.at_s):
            raise SimulationError(
                f"ReplicaFailure: got at_s={self.at_s!r}, back_s={self.back_s!r}, allowed is "
                "0 < at_s < back_s"
            )


class Workload:
    """The completions to generate and what happens to them outside the engines.

    Args:
        lengths: Tokens of each completion, over all its turns.
        prompt_tokens: Tokens of each prompt, >= 0.
        prompts: Number of different prompts, >= 1, of which the core is told: group g is of prompt g %
            prompts. None tells it nothing.
        turns: Generations of one completion, >= 1; between two of them the environment is waited for, and
            the completion has no slot, and its KV is computed again when it comes back.
        environment: Seconds that the environment takes between two turns.
        reward: Seconds that grading takes.
        outcomes: Rewards.
        seed: Of latencies and outcomes.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        prompt_tokens: int = 0,
        prompts: int | None = None,
        turns: int = 1,
        environment: Latency | None = None,
        reward: Latency | None = None,
        outcomes: Outcomes | None = None,
        seed: int = 0,
    ) -> None:
        sizes = (("prompt_tokens", prompt_tokens, 0), ("prompts", prompts, 1), ("turns", turns, 1))
        for name, value, least in sizes:
            if value is not None and value < least:
                raise SimulationError(f"Workload.{name}: got {value!r}, allowed is >= {least}")
        self.lengths = lengths
        self.prompt_tokens = prompt_tokens
        self.prompts = prompts
        self.turns = turns
        self.environment = environment or Latency()
        self.reward = reward or Latency()
        self._outcomes = outcomes or Outcomes()
        self._environment_noise = NoiseTable(seed, "environment")
        self._reward_noise = NoiseTable(seed, "reward")
        self._outcome_noise = NoiseTable(seed, "outcome")

    def tokens(self, group: int, member: int) -> int:
        """Tokens of a completion over all its turns."""
        return self.lengths.tokens(group, member)

    def traits(self, group: int) -> PromptTraits:
        """What the core is told of a group's prompt."""
        key = None if self.prompts is None else str(group % self.prompts)
        return PromptTraits(key=key, prompt_tokens=self.prompt_tokens)

    def turn_ends(self, tokens: int) -> list[int]:
        """Tokens at the end of each turn of a completion with that many; fewer turns if there are fewer."""
        if self.turns == 1:
            return [tokens]
        turns = min(self.turns, tokens)
        return [tokens * (turn + 1) // turns for turn in range(turns)]

    def environment_s(self, group: int, member: int, turn: int) -> float:
        """Seconds of the environment after a turn."""
        return self._seconds(self.environment, self._environment_noise, group, member * self.turns + turn)

    def reward_s(self, group: int, member: int) -> float:
        """Seconds to grade a completion."""
        return self._seconds(self.reward, self._reward_noise, group, member)

    def outside_s(self, group: int, member: int) -> float:
        """Seconds that a completion spends outside the engines in all."""
        if self.turns == 1:
            return self.reward_s(group, member)
        between = min(self.turns, self.tokens(group, member)) - 1
        waits = sum(self.environment_s(group, member, turn) for turn in range(between))
        return waits + self.reward_s(group, member)

    def value(self, group: int, member: int) -> float:
        """Reward of a completion."""
        outcomes = self._outcomes
        if outcomes.never or outcomes.always:
            drawn = 0.5 * (1 + math.erf(self._outcome_noise.value(group, 0) / math.sqrt(2)))
            if drawn < outcomes.never:
                return 0.0
            if drawn >= 1 - outcomes.always:
                return 1.0
        return float(member % 2)

    def batch(self, first_group: int, groups: int, group_size: int) -> np.ndarray:
        """int64 [groups, group_size]: tokens of the completions of consecutive groups."""
        return np.array(
            [
                [self.tokens(group, member) for member in range(group_size)]
                for group in range(first_group, first_group + groups)
            ],
            dtype=np.int64,
        ).reshape(groups, group_size)

    @staticmethod
    def _seconds(latency: Latency, noise: NoiseTable, row: int, column: int) -> float:
        if latency.std_s == 0:
            return latency.mean_s
        return max(0.0, latency.mean_s + latency.std_s * noise.value(row, column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """How long training takes.

    Attributes:
        sample_s: Seconds a sample on the devices of one replica, >= 0; twice the devices take half.
        fixed_s: Further seconds of a training step, >= 0.
        devices: Replicas' worth of devices of its own, >= 0. At 0 it trains on the devices of all replicas,
            which generate nothing meanwhile.
        switch_s: Seconds in which a device that changes sides, from generating to training or back, does
            neither, >= 0. Devices of the trainer's own do not change sides.
    """

    sample_s: float = 0.0
    fixed_s: float = 0.0
    devices: int = 0
    switch_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (
            ("sample_s", self.sample_s),
            ("fixed_s", self.fixed_s),
            ("devices", self.devices),
            ("switch_s", self.switch_s),
        ):
            if not math.isfinite(value) or value < 0:
                raise SimulationError(f"Trainer.{name}: got {value!r}, allowed is >= 0")

    @property
    def colocated(self) -> bool:
        """Whether it trains on the replicas' devices."""
        return self.devices == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything but the policy.

    Attributes:
        workload: The completions.
        engines: One a replica, >= 1.
        groups_per_batch: Groups that one training step takes, >= 1.
        group_size: Completions of a group, >= 1.
        trainer: How long training takes.
        sync_s: Seconds in which weights are sent and nothing is generated, >= 0.
        failures: Replicas that die.
    """

    workload: Workload
    engines: tuple[EngineModel, ...]
    groups_per_batch: int
    group_size: int
    trainer: Trainer = field(default_factory=Trainer)
    sync_s: float = 0.0
    failures: tuple[ReplicaFailure, ...] = ()

    def __post_init__(self) -> None:
        for name, value, least in (
            ("engines", len(self.engines), 1),
            ("groups_per_batch", self.groups_per_batch, 1),
            ("group_size", self.group_size, 1),
            ("sync_s", self.sync_s, 0),
        ):
            if not math.isfinite(value) or value < least:
                raise SimulationError(f"Setting.{name}: got {value!r}, allowed is >= {least}")
        for failure in self.failures:
            if not 0 <= failure.replica < len(self.engines):
                raise SimulationError(
                    f"Setting.failures: got replica {failure.replica}, allowed is 0 to "
                    f"{len(self.engines) - 1}"
                )

    @property
    def devices(self) -> int:
        """Devices in all, a replica's as the unit."""
        return len(self.engines) + self.trainer.devices

    def train_s(self, samples: int) -> float:
        """Seconds of a training step on that many samples."""
        devices = len(self.engines) if self.trainer.colocated else self.trainer.devices
        return self.trainer.fixed_s + self.trainer.sample_s * samples / devices

    @property
    def switch_s(self) -> float:
        """Seconds that all devices need to change sides before a training step, and again after it."""
        return self.trainer.switch_s if self.trainer.colocated else 0.0

    def split(self, trainer_devices: int) -> "Setting":
        """The same devices, of which the last `trainer_devices` replicas' are the trainer's alone.

        Raises:
            SimulationError: If no replica or no trainer would be left.
        """
        allowed = self.devices - 1
        if not self.trainer.colocated or not 1 <= trainer_devices <= allowed:
            raise SimulationError(
                f"Setting.split: got {trainer_devices} trainer devices of {self.devices}, allowed is 1 to "
                f"{allowed} of a setting that is not split yet"
            )
        return replace(
            self,
            engines=self.engines[:-trainer_devices],
            trainer=replace(self.trainer, devices=trainer_devices),
        )

    def policy(self, **fields: Any) -> SchedulerPolicy:
        """A policy with this setting's sizes and no deadlines.

        Args:
            **fields: Further fields of `SchedulerPolicy`.
        """
        chosen: dict[str, Any] = {"generate_deadline_s": NO_DEADLINE_S, "grade_deadline_s": NO_DEADLINE_S}
        return SchedulerPolicy(
            **{
                **chosen,
                "groups_per_batch": self.groups_per_batch,
                "group_size": self.group_size,
                **fields,
            }
        )
