"""What happens to attempts of tickets: they start, are stopped or called back, end, fail, miss deadlines.

The core passes its events on to these methods, which return the commands that follow, except those that start
what can start then.
"""

import math
from collections.abc import Iterable, Sequence

from roll_scheduler.errors import SchedulerError
from roll_scheduler.health.quarantine import Quarantine
from roll_scheduler.lifecycle.command import Abort, Command, Generate, Grade, Stop
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.flight import DeadlineQueue, Flight, VaryingDeadlineQueue
from roll_scheduler.lifecycle.groups import GroupBook
from roll_scheduler.lifecycle.ledger import Ledger
from roll_scheduler.partial import VersionSpan, joined_spans
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.dispatch import DispatchQueue
from roll_scheduler.ticket import TicketState

__all__ = ["Attempts"]

RUNNING, GRADING, WAITING = TicketState.RUNNING, TicketState.GRADING, TicketState.WAITING


class Attempts:
    """The attempts of one core.

    Args:
        policy: Retries, deadlines, what partial completions may do.
        book: The tickets and their groups.
        departures: Where tickets wait.
        queue: Is told how generations end, to predict others.
        quarantine: Is told of suspects that end well.
        ledger: Where ends are counted.
        anchor_s: Longest grading of a correct answer before a resume.

    Attributes:
        anchor_s: Longest grading of a correct answer so far, None before one.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        book: GroupBook,
        departures: Departures,
        queue: DispatchQueue,
        quarantine: Quarantine,
        ledger: Ledger,
        anchor_s: float | None = None,
    ) -> None:
        self._policy = policy
        self._book = book
        self._departures = departures
        self._queue = queue
        self._quarantine = quarantine
        self._ledger = ledger
        self._partial = policy.partial
        self.anchor_s = anchor_s
        self._generating = DeadlineQueue(RUNNING, policy.generate_deadline_s)
        self._grading = DeadlineQueue(GRADING, policy.grade_deadline_s)
        self._adaptive = VaryingDeadlineQueue(GRADING)
        self._stopping = DeadlineQueue(RUNNING, self._partial.stop_deadline_s if self._partial else math.inf)
        self._further = (self._grading, self._adaptive, self._stopping)

    @property
    def next_deadline(self) -> float | None:
        """When the next attempt misses a deadline, None if nothing runs."""
        earliest = self._generating.next_at()
        for queue in self._further:
            at = queue.next_at()
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def start(self, flight: Flight, replica: str, now: float) -> Generate:
        """A ticket got a slot."""
        version = self._book.version
        if not self.may_go_on(flight):
            self._book.begin_anew(flight)
        flight.state, flight.since = RUNNING, now
        self._departures.started(flight, replica)
        flight.oldest = min(flight.oldest, version) if flight.kept else version
        self._book.ages.sent(flight.group, flight.oldest)
        self._generating.push(flight, now)
        return Generate(ticket=flight.ticket, replica=replica)

    def may_go_on(self, flight: Flight) -> bool:
        """Whether what a ticket has kept may be continued by the current version."""
        if not flight.kept or self._partial is None:
            return True
        spanned = {span.version for span in flight.spans} | {self._book.version}
        return len(spanned) <= self._partial.max_versions

    def duplicate(self, flight: Flight, replica: str, now: float) -> Generate:
        """A running ticket got a slot on a further replica: who ends first counts."""
        version = self._book.version
        copy = self._book.twins.copy(flight, replica, now)
        copy.oldest = min(copy.oldest, version) if copy.kept else version
        self._generating.push(copy, now)
        return Generate(ticket=copy.ticket, replica=replica)

    def move(self, flight: Flight, now: float) -> list[Command]:
        """A running ticket is to go on elsewhere with what it has."""
        if flight.replica is not None:
            flight.avoid |= {flight.replica}
        self._ledger.totals["moved"] += 1
        return self.stop([flight], "straggler", now)

    def generated(
        self,
        flight: Flight,
        *,
        tokens: int,
        oldest_version: int,
        truncated: bool,
        now: float,
        spans: Sequence[VersionSpan],
    ) -> list[Command]:
        """A generation finished."""
        commands = self._book.twins.alone(flight)
        self._queue.finished(flight, tokens=tokens, truncated=truncated, now=now)
        sent_at = flight.oldest
        if self._partial is None:
            flight.took = now - flight.since
            flight.oldest = oldest_version
            self._ledger.totals["tokens"] += tokens
        else:
            self._take_tokens(flight, tokens, oldest_version, spans, now)
        if flight.losses:
            self._quarantine.cleared(flight)
        self._departures.left(flight)
        if flight.admitted:
            self._departures.ended(flight)
        flight.truncated = truncated
        if sent_at != flight.oldest:
            self._book.ages.changed(flight.group)
        if not self._book.fresh(flight.oldest):
            flight.state = TicketState.READY
            return commands + self._book.stale(flight.group, now)
        commands.append(self._start_grading(flight, now))
        return commands

    def stopped(
        self, flight: Flight, *, tokens: int, oldest_version: int, now: float, spans: Sequence[VersionSpan]
    ) -> list[Command]:
        """A generation ended early with what it has; it goes on later."""
        ticket = flight.ticket
        if self._partial is None:
            raise SchedulerError(
                f"stopped: ticket {ticket.id} was stopped, allowed is that only with SchedulerPolicy.partial"
            )
        commands = self._book.twins.alone(flight)
        if tokens == flight.kept and not flight.stopping:
            message = f"generation of ticket {ticket.id} ended unfinished, without a token and unasked"
            return commands + self.failed(flight, "stop", message, now)
        if tokens != flight.kept:
            self._take_tokens(flight, tokens, oldest_version, spans, now)
            flight.kept = tokens
        self._departures.left(flight)
        self._ledger.totals["stopped"] += 1
        self._book.next_attempt(flight, WAITING, now)
        if not self._book.fresh(flight.oldest):
            self._book.begin_anew(flight)
        self._departures.take_back([flight])
        return commands

    def graded(self, flight: Flight, *, value: float, now: float) -> list[Command]:
        """A grading finished."""
        if not math.isfinite(value):
            message = f"the reward of ticket {flight.ticket.id} is {value}"
            return self.failed(flight, "value", message, now)
        if value > 0 and self._policy.adaptive_grading is not None:
            self.anchor_s = max(self.anchor_s or 0.0, now - flight.since)
        flight.value = value
        flight.state, flight.since = TicketState.READY, now
        return self._book.settle(flight, now)

    def failed(self, flight: Flight, kind: str, message: str, now: float) -> list[Command]:
        """A generation or grading ended without a result: that is tried again, then the member is dropped."""
        self._ledger.failure(kind, message)
        if flight.twin is not None:  # the other one goes on, which costs no retry
            self._queue.failed(flight)
            self._book.twins.give_up(flight)
            return []
        flight.failures += 1
        again = flight.failures <= self._policy.retries
        if again:
            self._ledger.totals["retried"] += 1
        if flight.state is GRADING and again:
            self._book.next_attempt(flight, GRADING, now)
            return [self._start_grading(flight, now)]
        if flight.replica is not None:
            self._queue.failed(flight)
            flight.avoid |= {flight.replica}
            self._departures.left(flight)
        if not again:
            return self._book.lose(flight, now)
        self._book.next_attempt(flight, WAITING, now)
        self._book.begin_anew(flight)
        self._departures.retry(flight)
        return []

    def lose_replica(self, flights: Sequence[Flight], now: float) -> list[Command]:
        """The replica of these was lost: they are sent out again, groups that may kill replicas dropped."""
        commands: list[Command] = [Abort(ticket=flight.ticket, reason="replica") for flight in flights]
        flights = self._without_twins(flights)
        for flight in flights:
            flight.cap, flight.replica = 0, None
            self._book.next_attempt(flight, WAITING, now)
        for group in self._quarantine.blame(flights):
            commands += self._book.drop(group, "quarantined", now)
            self._ledger.totals["quarantined_groups"] += 1
        self._departures.take_back([flight for flight in flights if flight.state is WAITING])
        self._ledger.totals["redispatched"] += len(flights)
        return commands

    def vacate(self, flights: Sequence[Flight], now: float) -> list[Command]:
        """The replica of these leaves as planned: they are stopped, or sent out again without a suspicion."""
        commands: list[Command] = [
            Abort(ticket=flight.ticket, reason="replica") for flight in flights if flight.twin is not None
        ]
        flights = self._without_twins(flights)
        for flight in flights:
            flight.cap, flight.replica = 0, None
        self._ledger.totals["redispatched"] += len(flights)
        if self._partial is not None:
            return commands + self.stop(flights, "replica", now)
        return commands + self.call_back(flights, "replica", now)

    def stop(self, flights: Iterable[Flight], reason: str, now: float) -> list[Command]:
        """These are to end soon with what they have."""
        commands: list[Command] = []
        for flight in flights:
            if not flight.stopping:
                commands += self._book.twins.alone(flight)
                flight.stopping = True
                self._stopping.push(flight, now)
                commands.append(Stop(ticket=flight.ticket, reason=reason))
        return commands

    def call_back(self, flights: Sequence[Flight], reason: str, now: float) -> list[Command]:
        """These are aborted and wait again, at no cost but their tokens of this attempt."""
        commands: list[Command] = []
        for flight in flights:
            commands += self._book.twins.alone(flight)
            commands.append(Abort(ticket=flight.ticket, reason=reason))
            self._departures.left(flight)
            self._book.next_attempt(flight, WAITING, now)
        self._departures.take_back(flights)
        return commands

    def tick(self, now: float) -> list[Command]:
        """Attempts whose deadline is over are aborted and have failed."""
        commands: list[Command] = []
        for queue, what, kind in (
            (self._stopping, "stopping the generation", "stop"),
            (self._generating, "generation", "deadline"),
            (self._grading, "grading", "deadline"),
        ):
            for flight in queue.pop_expired(now):
                commands += self._cut(flight, what, kind, queue.seconds, now)
        for flight, seconds in self._adaptive.pop_expired(now):
            if flight.state is GRADING:
                self._ledger.totals["adaptive_cuts"] += 1
            commands += self._cut(flight, "grading", "adaptive_deadline", seconds, now)
        return commands

    def _without_twins(self, flights: Sequence[Flight]) -> list[Flight]:
        """Those of a replica that has left of which no other attempt goes on."""
        left = []
        for flight in flights:
            if flight.twin is not None:
                flight.replica = None
                self._book.twins.give_up(flight)
            else:
                left.append(flight)
        return left

    def _cut(self, flight: Flight, what: str, kind: str, seconds: float, now: float) -> list[Command]:
        if flight.state not in (RUNNING, GRADING):
            return []
        where = "" if flight.replica is None else f" on replica {flight.replica!r}"
        message = f"{what} of ticket {flight.ticket.id} took longer than {seconds:g} s{where}"
        reason = "stop" if kind == "stop" else "deadline"
        return [Abort(ticket=flight.ticket, reason=reason), *self.failed(flight, kind, message, now)]

    def _start_grading(self, flight: Flight, now: float) -> Grade:
        flight.state, flight.since = GRADING, now
        adaptive = self._policy.adaptive_grading
        if adaptive is not None and (seconds := adaptive.seconds(self.anchor_s)) < self._grading.seconds:
            self._adaptive.push(flight, now, seconds)
        else:
            self._grading.push(flight, now)
        return Grade(ticket=flight.ticket)

    def _take_tokens(
        self, flight: Flight, tokens: int, oldest_version: int, spans: Sequence[VersionSpan], now: float
    ) -> None:
        """Counts the tokens of a part that ended with a result."""
        ticket, kept = flight.ticket, flight.kept
        new = tokens - kept
        if new < 0:
            raise SchedulerError(
                f"ticket {ticket.id}: got {tokens} tokens, allowed are at least the {kept} of earlier parts"
            )
        if spans and (
            sum(span.tokens for span in spans) != new or min(span.version for span in spans) != oldest_version
        ):
            raise SchedulerError(
                f"ticket {ticket.id}: got spans {list(spans)} for {new} new tokens since version "
                f"{oldest_version}; allowed are spans that add up to them, the oldest of that version"
            )
        flight.took += now - flight.since
        flight.oldest = min(flight.oldest, oldest_version) if kept else oldest_version
        self._ledger.totals["tokens"] += new
        plain = (VersionSpan(version=oldest_version, tokens=new),) if new else ()
        flight.spans = joined_spans(flight.spans, spans or plain)
