"""The world with devices that change sides a replica at a time, as an `ElasticPlan` says."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from roll_scheduler.lifecycle.command import Command, Cut
from roll_scheduler.planning.elastic import ElasticCommand, ElasticLoad, ElasticPlan, ElasticPolicy, Lend
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.longest_first import LengthEstimator
from roll_scheduler.simulator.device_sides import DeviceSides, Side
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.result import Delivered, SimulationResult
from roll_scheduler.simulator.setting import ReplicaFailure, Setting
from roll_scheduler.simulator.stream_trainer import StreamTrainer
from roll_scheduler.simulator.world import Running, World
from roll_scheduler.ticket import Ticket

__all__ = ["ElasticWorld"]

LEAST_REVIEW_S = 0.05
"""Virtual seconds between two looks at the plan, at least; what cannot wait is looked at at once."""


class ElasticWorld(World):
    """One simulation in which replicas are lent to the trainer.

    A batch is trained on from its first complete group on, by the devices that are lent; when it is whole,
    the optimizer step follows, for which everything is held up. On-policy, all devices have come to the
    trainer by then; with `max_staleness` above 0, rollouts go on up to it and after it, with their KV.

    Args:
        setting: Workload and devices; the trainer has none of its own.
        policy: What the core may do.
        elastic: How readily devices change sides.
        groups: Prompts there are.
        slots: Tickets that the core sends to a replica at a time.
        run_seed: Seed of the core.
        record_spans: Whether the result has spans.
        estimator: Predicts lengths for the core.

    Raises:
        SimulationError: If the trainer has devices of its own.
    """

    def __init__(
        self,
        setting: Setting,
        policy: SchedulerPolicy,
        elastic: ElasticPolicy,
        *,
        groups: int | None,
        slots: int | None,
        run_seed: int,
        record_spans: bool,
        estimator: LengthEstimator | None = None,
    ) -> None:
        if not setting.trainer.colocated:
            raise SimulationError(
                f"simulate: elastic with {setting.trainer.devices:g} devices of the trainer's own, allowed "
                "is a trainer on the replicas' devices (a setting that is not split)"
            )
        super().__init__(
            setting,
            policy,
            groups=groups,
            slots=slots,
            run_seed=run_seed,
            record_spans=record_spans,
            estimator=estimator,
        )
        self._overlap = policy.max_staleness > 0
        self._plan = ElasticPlan(
            elastic, dict(zip(self._index, self._slots, strict=True)), overlap=self._overlap
        )
        self._trainer = StreamTrainer()
        self._sides = DeviceSides(self._index, setting.trainer.switch_s)
        self._on = dict.fromkeys(self._index, 0)
        self._free = sum(self._slots)
        self._names_of = list(self._index)
        self._group_s = setting.trainer.sample_s * setting.group_size
        self._sent_at: dict[int, int] = {}
        self._ready: set[int] = set()
        self._sent_of: Counter[int] = Counter()
        self._ready_of: Counter[int] = Counter()
        self._closing: tuple[list[Delivered], float] | None = None
        self._paused = False
        self._review_s = max(LEAST_REVIEW_S, elastic.switch_s / 10)
        self._reviewed = -math.inf
        self._changed = False

    def result(self, name: str) -> SimulationResult:
        """What the run was like, with the seconds of devices."""
        return replace(
            super().result(name),
            streamed=True,
            device_s=self._device_s(),
            lent=tuple((self._index[name], *span) for name, span in self._sides.lent(self._now)),
        )

    def _device_s(self) -> dict[str, float]:
        """Device seconds; the optimizer step and the weight sync count as idle."""
        sides = self._sides.seconds(self._now)
        decode_s, train_s = self._fleet.usage(self._now).busy_s, self._trainer.busy_s
        return {
            "decode": decode_s,
            "train": train_s,
            "switch": sides[Side.TO_TRAINER] + sides[Side.TO_ROLLOUT],
            "rollout idle": sides[Side.ROLLOUT] - decode_s,
            "trainer idle": sides[Side.TRAINER] - train_s,
            "dead": sides[Side.DEAD],
        }

    # What happens, in the order of a step.

    def _also_at(self) -> float:
        if self._changed and not self._paused:
            return min(self._trainer.next_at(), max(self._now, self._reviewed + self._review_s))
        return self._trainer.next_at()

    def _advance(self) -> None:
        super()._advance()
        self._trainer.settle(self._now)
        if self._closing is not None and self._may_step():
            self._optimize(*self._closing)
        elif not self._running or self._now >= self._reviewed + self._review_s:
            self._review()
        else:
            self._changed = True

    def _train(self, cut: Cut) -> None:
        self._asking = False
        if not cut.deliveries:
            self._ended = True
            return
        delivered = [item for delivery in cut.deliveries for item in self._kept(delivery, cut.version)]
        for delivery in cut.deliveries:
            self._leave_books(delivery.group)
        self._carry_out(cut.commands)
        self._trainer.offer(len(delivered) * self._setting.trainer.sample_s, self._now)
        self._closing = delivered, self._now
        if self._may_step():
            self._optimize(*self._closing)
        else:
            self._review()

    def _may_step(self) -> bool:
        """Whether the gradients are complete and the devices together."""
        if self._trainer.left_s > 0:
            return False
        return self._overlap or not self._sides.count(Side.ROLLOUT, Side.TO_TRAINER, Side.TO_ROLLOUT)

    def _optimize(self, delivered: list[Delivered], cut_at: float) -> None:
        self._closing, self._paused = None, True
        fixed_s = self._setting.trainer.fixed_s
        end = self._fleet.stall(self._now, fixed_s)
        seconds = self._setting.train_s(len(delivered))
        self._at(end, partial(self._trained, delivered, cut_at=cut_at, train_s=seconds))

    def _synchronised(self, delivered: list[Delivered], *, cut_at: float, train_s: float) -> None:
        super()._synchronised(delivered, cut_at=cut_at, train_s=train_s)
        self._trainer.begin(self._now)
        self._paused = False
        work_s = len(delivered) * self._setting.trainer.sample_s
        self._carry_out_plan(self._plan.step_ended(work_s, self._now))
        self._reviewed = -math.inf

    # What the plan looks at.

    def _review(self) -> None:
        if self._paused:
            return
        self._reviewed, self._changed = self._now, False
        coming_s = 0.0
        if self._closing is None:
            committed = self._committed()
            self._trainer.offer(committed * self._group_s, self._now)
            coming_s = (self._setting.groups_per_batch - committed) * self._group_s
        left_s = self._trainer.left_s
        queued = 0 if self._free > 0 else 1
        if queued and self._plan.lent and not (self._overlap and self._running):
            queued = self._core.pending_count() - len(self._running) - len(self._grading)
        load = ElasticLoad(running=self._on, queued=queued, trainable_s=left_s, coming_s=coming_s)
        self._carry_out_plan(self._plan.decide(load, self._now))

    def _committed(self) -> int:
        """Complete groups that are certain to be in the coming batch: those that are due, and as many of the
        younger ones as are left when all that are due have come."""
        wanted = self._setting.groups_per_batch
        if not self._overlap:
            return min(len(self._ready), wanted)
        due = self._core.version - math.ceil(self._policy.max_staleness)
        expected = sum(count for version, count in self._sent_of.items() if version <= due)
        ready = sum(count for version, count in self._ready_of.items() if version <= due)
        return min(ready + min(len(self._ready) - ready, max(0, wanted - expected)), wanted)

    # Which group is complete.

    def _generate(self, ticket: Ticket, replica: int) -> None:
        name = self._names_of[replica]
        if self._sides.side(name) is Side.ROLLOUT:
            self._on[name] += 1
            self._free -= 1
        if ticket.group not in self._sent_at:
            self._sent_at[ticket.group] = version = self._core.version
            self._sent_of[version] += 1
        super()._generate(ticket, replica)

    def _generated(self, running: Running) -> None:
        self._slot_free(running)
        super()._generated(running)

    def _stop(self, ticket: Ticket) -> list[Command]:
        running = self._find(ticket)
        commands = super()._stop(ticket)
        if running is not None and ticket.id in self._parts:
            self._slot_free(running)
        return commands

    def _slot_free(self, running: Running) -> None:
        name = self._names_of[running.replica]
        if self._sides.side(name) is Side.ROLLOUT:
            self._on[name] -= 1
            self._free += 1

    def _graded(self, ticket: Ticket) -> list[Command]:
        commands = super()._graded(ticket)
        group = ticket.group
        if group in self._sent_at and self._graded_of[group] == self._policy.group_size:
            self._ready.add(group)
            self._ready_of[self._sent_at[group]] += 1
        return commands

    def _forget(self, group: int, *, deferred: bool) -> None:
        super()._forget(group, deferred=deferred)
        self._leave_books(group)

    def _leave_books(self, group: int) -> None:
        version = self._sent_at.pop(group, None)
        if version is None:
            return
        self._sent_of[version] -= 1
        if group in self._ready:
            self._ready.remove(group)
            self._ready_of[version] -= 1

    def _abort(self, ticket: Ticket, reason: str) -> None:
        running = self._find(ticket)
        if running is not None:
            self._slot_free(running)
        super()._abort(ticket, reason)

    # How devices change sides.

    def _carry_out_plan(self, changes: Iterable[ElasticCommand]) -> None:
        lends = [change.replica for change in changes if isinstance(change, Lend)]
        for change in changes:
            if not isinstance(change, Lend):
                self._reclaim(change.replica)
        if lends:
            self._lend(lends)

    def _lend(self, names: list[str]) -> None:
        commands: list[Command] = []
        for name in names:
            leaves = self._now
            if self._sides.side(name) is Side.ROLLOUT:
                index = self._index[name]
                leaves = self._fleet.stops_at(index, self._now)
                self._fleet.restart(index, self._now)
                self._free -= self._slots[index] - self._on[name]
                self._on[name] = 0
                commands += self._core.replica_down(name, "lent", self._now, returns=True, planned=True)
            arrives = self._sides.leave(name, Side.TO_TRAINER, leaves)
            self._at(arrives, partial(self._at_trainer, name))
        # What runs is stopped when all of them are down, or it would go from one to the next.
        self._carry_out(commands)

    def _die(self, failure: ReplicaFailure) -> None:
        name = f"replica {failure.replica}"
        side = self._sides.side(name)
        self._plan.lost(name)
        if side is Side.ROLLOUT:
            self._free -= self._slots[failure.replica] - self._on[name]
        if side is Side.TRAINER:
            self._trainer.add(-1, self._now)
        self._on[name] = 0
        self._sides.arrive(name, Side.DEAD, self._now)
        if side is Side.ROLLOUT:
            super()._die(failure)
        elif failure.back_s is not None:
            self._at(failure.back_s, partial(self._come_back, failure.replica))

    def _come_back(self, replica: int) -> None:
        name = f"replica {replica}"
        if self._sides.side(name) is Side.DEAD:
            self._plan.found(name, self._slots[replica])
        self._sides.arrive(name, Side.ROLLOUT, self._now)
        self._free += self._slots[replica]
        super()._come_back(replica)

    def _at_trainer(self, name: str) -> None:
        if self._sides.is_due(name, Side.TO_TRAINER, self._now):
            self._sides.arrive(name, Side.TRAINER, self._now)
            self._trainer.add(1, self._now)

    def _reclaim(self, name: str) -> None:
        if self._sides.side(name) is Side.TRAINER:
            self._trainer.add(-1, self._now)
        arrives = self._sides.leave(name, Side.TO_ROLLOUT, self._now)
        self._at(arrives, partial(self._at_rollout, name))

    def _at_rollout(self, name: str) -> None:
        if self._sides.is_due(name, Side.TO_ROLLOUT, self._now):
            self._come_back(self._index[name])
