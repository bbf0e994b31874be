"""What a simulation tells: one record a step, and sums over the run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from roll_scheduler.simulator.bounds import device_bound, step_bound, work_bound, work_seconds
from roll_scheduler.simulator.fleet import Fleet, FleetUsage
from roll_scheduler.simulator.setting import Setting

__all__ = ["Delivered", "Meter", "SimulationResult", "SlotSpan", "StepRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A completion that goes into training.

    Attributes:
        group: Occurrence number of its prompt.
        member: Index in the group.
        tokens: Its length.
        staleness: Versions between its first token and its training.
    """

    group: int
    member: int
    tokens: int
    staleness: int = 0


class SlotSpan(NamedTuple):
    """A stretch of time in which a completion had a slot.

    Attributes:
        replica: Index of the replica.
        slot: Index of its slot.
        start: Seconds.
        end: Seconds.
        group: Occurrence number of the prompt.
        member: Index in the group.
        kept: Whether it was trained on in the end.
    """

    replica: int
    slot: int
    start: float
    end: float
    group: int
    member: int
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One training step.

    Attributes:
        step: 0, 1, 2, ...
        start_s: End of the step before.
        rollout_s: Makespan: from the request for the batch until it is there.
        train_start_s: When its training began.
        train_s: Seconds of training.
        step_s: From the end of the step before to its own, weight sync included.
        samples: Completions trained on.
        tokens: Their tokens.
        sampled_tokens: Tokens decoded during the step, for whichever batch.
        aborted_tokens: Tokens of completions that were stopped and are not continued.
        wasted_tokens: The same plus tokens of complete ones that were not delivered (filtered, stale).
        recomputed_tokens: Tokens whose KV was computed again (preemption, sync, continuation).
        preemptions: Times that a replica ran out of KV.
        slot_utilisation: Busy part of the slots while nothing held the replicas up, 0 to 1.
        token_utilisation: Tokens decoded as a share of what full batches would have given, 0 to 1.
        staleness: Completions by staleness.
        kept_tokens_mean: Mean length of the completions trained on.
        left_out_tokens_mean: Mean length that those left out have or would have had; 0 if none was.
        bound_s: Lower bound of the rollout of just these completions in one step; see `bounds`.
        work_s: Their tokens at full batches on all replicas.
    """

    step: int
    start_s: float
    rollout_s: float
    train_start_s: float
    train_s: float
    step_s: float
    samples: int
    tokens: int
    sampled_tokens: int
    aborted_tokens: int
    wasted_tokens: int
    recomputed_tokens: int
    preemptions: int
    slot_utilisation: float
    token_utilisation: float
    staleness: Mapping[int, int]
    kept_tokens_mean: float
    left_out_tokens_mean: float
    bound_s: float
    work_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """A policy's run.

    Attributes:
        policy: Name.
        recreation: Whether it re-creates a published system and does not use this package's core.
        setting: What it ran on.
        steps: In order.
        groups: For each step, the groups trained on, sorted.
        spans: Which completion had which slot; empty if not recorded.
        streamed: Whether training on a batch began before it was whole.
        device_s: Device seconds by what they were spent on, where devices change sides; otherwise empty.
            Their sum is the number of devices times `total_s`.
        lent: Replica, start and end of each time that a replica's devices were on the trainer's side, where
            devices change sides.
    """

    policy: str
    recreation: bool
    setting: Setting
    steps: tuple[StepRecord, ...]
    groups: tuple[tuple[int, ...], ...]
    spans: tuple[SlotSpan, ...] = ()
    streamed: bool = False
    device_s: Mapping[str, float] = field(default_factory=dict)
    lent: tuple[tuple[int, float, float], ...] = ()

    @property
    def total_s(self) -> float:
        """Seconds of all steps."""
        return sum(step.step_s for step in self.steps)

    @property
    def work_bound_s(self) -> float:
        """Least seconds in which these devices, as they are split, do what was trained on."""
        return work_bound(
            self.setting,
            steps=len(self.steps),
            samples=sum(step.samples for step in self.steps),
            tokens=sum(step.tokens for step in self.steps),
        )

    @property
    def device_bound_s(self) -> float:
        """Least seconds on the same devices, however they are split."""
        return device_bound(
            self.setting,
            samples=sum(step.samples for step in self.steps),
            tokens=sum(step.tokens for step in self.steps),
        )

    @property
    def step_bound_s(self) -> float:
        """Least seconds without overlap of steps: each step's rollout bound, training and sync.

        Where training begins before the batch is whole, a step takes at least its rollout bound, and at least
        its tokens and training on all devices; the optimizer step and the sync come after either.
        """
        if not self.streamed:
            return sum(step.bound_s + step.train_s + self.setting.sync_s for step in self.steps)
        after_s = self.setting.trainer.fixed_s + self.setting.sync_s
        return sum(
            max(step.bound_s, step.work_s + step.train_s - self.setting.trainer.fixed_s) + after_s
            for step in self.steps
        )

    @property
    def staleness(self) -> dict[int, int]:
        """Completions by staleness over the run."""
        total: Counter[int] = Counter()
        for step in self.steps:
            total.update(step.staleness)
        return dict(sorted(total.items()))

    def summary(self) -> dict[str, float]:
        """Means over the steps and shares over the run, by name."""
        steps, count = self.steps, max(1, len(self.steps))
        sampled = max(1, sum(step.sampled_tokens for step in steps))
        samples = max(1, sum(step.samples for step in steps))
        left_out = [step.left_out_tokens_mean for step in steps if step.left_out_tokens_mean]
        kept = sum(step.tokens for step in steps) / samples
        staleness = sum(age * number for age, number in self.staleness.items()) / samples
        return {
            "step_s": self.total_s / count,
            "rollout_s": sum(step.rollout_s for step in steps) / count,
            "train_s": sum(step.train_s for step in steps) / count,
            "samples_per_s": samples / self.total_s if self.total_s else 0.0,
            "of_step_bound": self.step_bound_s / self.total_s if self.total_s else 0.0,
            "of_work_bound": self.work_bound_s / self.total_s if self.total_s else 0.0,
            "of_device_bound": self.device_bound_s / self.total_s if self.total_s else 0.0,
            "slot_utilisation": sum(step.slot_utilisation for step in steps) / count,
            "token_utilisation": sum(step.token_utilisation for step in steps) / count,
            "aborted_share": sum(step.aborted_tokens for step in steps) / sampled,
            "wasted_share": sum(step.wasted_tokens for step in steps) / sampled,
            "recomputed_tokens": float(sum(step.recomputed_tokens for step in steps)),
            "preemptions": float(sum(step.preemptions for step in steps)),
            "staleness_mean": staleness,
            "staleness_max": float(max(self.staleness, default=0)),
            "kept_tokens_mean": kept,
            "left_out_tokens_mean": sum(left_out) / len(left_out) if left_out else 0.0,
        }


@dataclass(slots=True)
class Meter:
    """Takes down what happens during a step and makes its record. One a run.

    Attributes:
        aborted_tokens: Tokens that stopped completions had, since the last record.
        surplus_tokens: Tokens of complete ones that were not delivered, since the last record.
        left_out: Lengths of completions left out, since the last record.
        steps: The records.
        groups: For each record its groups.
        kept: Group and member of all that was delivered, if the fleet records spans.
    """

    setting: Setting
    fleet: Fleet
    aborted_tokens: int = 0
    surplus_tokens: int = 0
    left_out: list[int] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    kept: set[tuple[int, int]] = field(default_factory=set)
    _end_s: float = 0.0
    _usage: FleetUsage | None = None

    def stopped(self, tokens: int, *, length: int | None = None) -> None:
        """A completion was stopped with that many tokens; with its `length`, if it is left out for good."""
        self.aborted_tokens += tokens
        if length is not None:
            self.left_out.append(length)

    def refused(self, tokens: int, *, left_out: bool = True) -> None:
        """A completion that was complete is not delivered; unless `left_out`, it will come again."""
        self.surplus_tokens += tokens
        if left_out:
            self.left_out.append(tokens)

    def close(
        self, delivered: list[Delivered], *, opened: float, cut: float, train_s: float, end: float
    ) -> None:
        """The step is over.

        Args:
            delivered: What it trained on.
            opened: When the batch was asked for.
            cut: When it was there.
            train_s: Seconds of training.
            end: When the next step may begin.
        """
        before, usage = self._usage, self.fleet.usage(end)
        slot_s, tokens, free_s = usage.slot_s, usage.tokens, len(self.fleet) * (end - self._end_s)
        if before is not None:
            slot_s, tokens = slot_s - before.slot_s, tokens - before.tokens
        free_s -= usage.stalled_s - (before.stalled_s if before else 0.0)
        slots = sum(engine.slots for engine in self.fleet.models) / len(self.fleet)
        lengths = np.array([item.tokens for item in delivered], dtype=np.int64)
        bound, work = self._bounds(delivered)
        full_s = work_seconds(float(tokens), self.fleet.models) * len(self.fleet)
        self.steps.append(
            StepRecord(
                step=len(self.steps),
                start_s=self._end_s,
                rollout_s=cut - opened,
                train_start_s=max(cut, self._end_s),
                train_s=train_s,
                step_s=end - self._end_s,
                samples=len(delivered),
                tokens=int(lengths.sum()),
                sampled_tokens=tokens,
                aborted_tokens=self.aborted_tokens,
                wasted_tokens=self.aborted_tokens + self.surplus_tokens,
                recomputed_tokens=usage.recomputed - (before.recomputed if before else 0),
                preemptions=usage.preemptions - (before.preemptions if before else 0),
                slot_utilisation=slot_s / (slots * free_s) if free_s > 0 else 0.0,
                token_utilisation=full_s / free_s if free_s > 0 else 0.0,
                staleness=dict(sorted(Counter(item.staleness for item in delivered).items())),
                kept_tokens_mean=float(lengths.mean()) if delivered else 0.0,
                left_out_tokens_mean=float(np.mean(self.left_out)) if self.left_out else 0.0,
                bound_s=bound,
                work_s=work,
            )
        )
        self.groups.append(tuple(sorted({item.group for item in delivered})))
        if self.fleet.spans is not None:
            self.kept.update((item.group, item.member) for item in delivered)
        self._usage, self._end_s = usage, end
        self.aborted_tokens = self.surplus_tokens = 0
        self.left_out.clear()

    def spans(self, names: Mapping[int, tuple[int, int]]) -> tuple[SlotSpan, ...]:
        """What the fleet has recorded.

        Args:
            names: Group and member by key of the sequence.
        """
        return tuple(
            SlotSpan(index, span.slot, span.start, span.end, *names[span.key], names[span.key] in self.kept)
            for index, replica in enumerate(self.fleet.spans or [])
            for span in replica
        )

    def _bounds(self, delivered: list[Delivered]) -> tuple[float, float]:
        if not delivered:
            return 0.0, 0.0
        workload = self.setting.workload
        waits = workload.turns > 1 or not workload.reward.is_none
        tokens: dict[int, list[int]] = {}
        outside: dict[int, list[float]] = {}
        for item in delivered:
            tokens.setdefault(item.group, []).append(item.tokens)
            if waits:
                outside.setdefault(item.group, []).append(workload.outside_s(item.group, item.member))
        bound = step_bound(
            [np.array(group) for group in tokens.values()],
            self.fleet.models,
            prompt_tokens=workload.prompt_tokens,
            outside_s=[np.array(group) for group in outside.values()] if waits else None,
        )
        everything = float(sum(item.tokens for item in delivered))
        return bound.seconds, work_seconds(everything, self.fleet.models)
