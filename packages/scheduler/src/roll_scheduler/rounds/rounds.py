"""Rounds: what is admitted while a batch is being made, when it is complete, and what becomes of the rest.

Used by the core. Without over-provisioning all rounds are alike; with tail rounds long ones come in between.
"""

from dataclasses import replace

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lifecycle.attempts import Attempts
from roll_scheduler.lifecycle.command import Command, Cut
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.groups import GroupBook
from roll_scheduler.lifecycle.ledger import Ledger
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.rounds.selection import excess_groups, select
from roll_scheduler.rounds.staleness import admissible
from roll_scheduler.snapshot import SchedulerSnapshot

__all__ = ["Rounds"]


class Rounds:
    """The rounds of one core.

    Args:
        policy: Sizes, bounds, over-provisioning.
        book: The groups.
        departures: Where tickets wait; held between two batches if the policy says so.
        attempts: Stops what runs when a batch is complete, if the policy says so.
        ledger: Where ends are counted.
        resume: Groups that were deferred before.

    Attributes:
        exhausted: Whether there are no more prompts.
        training: Tickets that were delivered in the batch that is in training.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        book: GroupBook,
        departures: Departures,
        attempts: Attempts,
        ledger: Ledger,
        resume: SchedulerSnapshot,
    ) -> None:
        self._policy = policy
        self._book = book
        self._departures = departures
        self._attempts = attempts
        self._ledger = ledger
        self._to_defer = dict.fromkeys(resume.deferred, 1)
        self._groups_in_training = 0
        self._collecting = False
        self._long_round = False
        self._paused = False
        self.exhausted = False
        self.training = 0
        self._hold()

    @property
    def room(self) -> int:
        """Number of groups that may be admitted; 0 in a pause, without prompts, with too many failures."""
        if self.exhausted or self._departures.held or self._ledger.verdict(self._policy) is not None:
            return 0
        return admissible(
            groups_per_batch=self._policy.pool,
            max_staleness=self._policy.max_staleness,
            outstanding=len(self._book.groups) + self._groups_in_training,
            extra=self._book.provision.groups if self._speculates else 0,
        )

    @property
    def deferred(self) -> tuple[int, ...]:
        """Groups that wait for a long round, sorted."""
        return tuple(sorted((*self._book.deferred, *self._to_defer)))

    @property
    def paused(self) -> bool:
        """Whether nothing may be sent out."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._hold()

    def gauges(self) -> dict[str, float]:
        """Tickets in training, and how many more groups and members than needed a short round sends out."""
        return {
            "training": float(self.training),
            "over_groups": float(self._book.provision.groups),
            "over_members": float(self._book.provision.members),
        }

    def open(self) -> None:
        """The next batch is asked for."""
        self._ledger.totals["trained"] += self.training
        self._groups_in_training = self.training = 0
        self._collecting = True
        waiting = len(self._book.deferred)
        self._long_round = waiting >= self._policy.groups_per_batch or (self.exhausted and waiting > 0)
        if self._speculates:
            self._book.provision.begin(self._departures.slots)
        self._hold()

    def exhaust(self) -> None:
        """There are no more prompts.

        Raises:
            SchedulerError: If a group that was deferred before a resume has not come: it would be lost.
        """
        if self._to_defer:
            raise SchedulerError(
                f"prompts: they ended before group {max(self._to_defer)}, which the snapshot has deferred; "
                "allowed are those of before, from its first_group on"
            )
        self.exhausted = True

    def refill(self, now: float) -> tuple[list[Command], bool]:
        """What can be done for a batch without a new prompt; and whether there may be tickets to start."""
        if not self._collecting:
            return [], False
        commands = self._end_excess(now) if self._policy.max_staleness % 1 else []
        if not (self._book.deferred and (self._long_round or self.exhausted)):
            return commands, bool(commands) or self._policy.stops_at_cut
        self._long_round = True
        while self._book.deferred and len(self._book.groups) < self._policy.groups_per_batch:
            group_id = next(iter(self._book.deferred))
            attempt = self._book.deferred.pop(group_id)
            self._departures.add(
                self._book.open(group_id, now, members=self._policy.group_size, attempt=attempt)
            )
        return commands, True

    def admit(self, group_id: int, now: float) -> None:
        """A group begins, or, if it was deferred before a resume, waits for its long round."""
        if group_id in self._to_defer:
            self._book.deferred[group_id] = self._to_defer.pop(group_id)
            return
        members = self._policy.group_size + (self._book.provision.members if self._speculates else 0)
        self._departures.add(self._book.open(group_id, now, members=members))

    def take(self, now: float) -> Cut | None:
        """The batch if it is complete; smaller, maybe empty, when the prompts are exhausted."""
        book, policy = self._book, self._policy
        last = self.exhausted and len(book.ready) == len(book.groups) and not book.deferred
        if (len(book.ready) < policy.pool and not last) or book.ages.must_wait(book.version, policy):
            return None
        chosen, refused = select(book.ready.values(), policy, version=book.version)
        if len(chosen) < policy.groups_per_batch and not last:
            return None
        self._groups_in_training, self._collecting = len(chosen), False
        self._hold()
        cut = book.cut(chosen, now, leave=policy.max_staleness > 0, refused=refused)
        self.training = sum(len(delivery.members) for delivery in cut.deliveries)
        if not policy.stops_at_cut:
            return cut
        stops = self._attempts.stop(book.running(), "cut", now)
        return replace(cut, commands=(*cut.commands, *stops))

    def _hold(self) -> None:
        self._departures.held = self._paused or (self._policy.stops_at_cut and not self._collecting)

    def _end_excess(self, now: float) -> list[Command]:
        """Ends complete groups of the oldest version that no batch may take, if only they are in the way."""
        book = self._book
        if len(book.ready) < len(book.groups) or len(book.ready) < self._policy.groups_per_batch or self.room:
            return []
        commands: list[Command] = []
        for group in excess_groups(book.ready.values(), self._policy, version=book.version):
            commands += book.stale(group, now)
        return commands

    @property
    def _speculates(self) -> bool:
        """Whether what is admitted now may be more than needed: in an asynchronous run always, otherwise in
        the short rounds."""
        if self._policy.over_provision is None:
            return False
        return self._policy.max_staleness > 0 or (self._collecting and not self._long_round)
