"""What keeps tickets from starting or ending, in words. Used by the core for `why` and for its errors."""

from collections.abc import Iterable

from roll_scheduler.lifecycle.flight import Flight, longest_pending
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.reports.diagnosis import Diagnosis, LateTicket
from roll_scheduler.ticket import TicketState

__all__ = ["Reasons"]

SHOWN = 8
"""Replicas that a sentence lists."""


class Reasons:
    """Explains the tickets of one core.

    Args:
        policy: Deadlines and limits.
        replicas: Where tickets could go.
    """

    def __init__(self, policy: SchedulerPolicy, replicas: ReplicaSlots) -> None:
        self._policy = policy
        self._replicas = replicas

    def diagnosis(
        self, flights: Iterable[Flight], *, paused_at: float | None, held: bool, most: int | None, now: float
    ) -> Diagnosis:
        """Why tickets are late.

        Args:
            flights: Tickets that have not ended.
            paused_at: When the pause began, None without one.
            held: Whether nothing may start.
            most: Late tickets at most; None for all.
            now: Time.
        """
        everything = list(flights)
        states = (TicketState.WAITING, TicketState.RUNNING, TicketState.GRADING, TicketState.READY)
        counts = {state.value: sum(flight.state is state for flight in everything) for state in states}
        blocked = self.blocked(paused_at=paused_at, held=held, now=now)
        late = [self._late(flight, blocked, now) for flight in longest_pending(everything, most)]
        return Diagnosis(counts=counts, blocked=blocked, late=tuple(late))

    def blocked(self, *, paused_at: float | None, held: bool, now: float) -> str:
        """Why nothing can start, empty if it can; see `diagnosis`."""
        replicas = self._replicas
        if paused_at is not None:
            return f"paused for {now - paused_at:.1f} s, resume was not called"
        if not len(replicas):
            gone = _listed(f"{name!r} ({reason})" for name, reason in replicas.lost.items())
            back = f"; to return: {_listed(map(repr, sorted(replicas.returning)))}"
            return f"no replica is left, lost: {gone}{back if replicas.returning else ''}"
        if len(replicas.draining) == len(replicas):
            return f"all replicas drain: {_listed(map(repr, replicas.names()))}"
        return "nothing starts until the next batch is asked for" if held else ""

    def _late(self, flight: Flight, blocked: str, now: float) -> LateTicket:
        match flight.state:
            case TicketState.WAITING:
                why = self._waits(flight, blocked)
            case TicketState.GRADING:
                why = f"is graded, deadline {self._policy.grade_deadline_s:g} s"
            case _:
                why = self._runs(flight, now)
        return LateTicket(
            ticket=flight.ticket,
            state=flight.state,
            age_s=now - flight.since,
            replica=flight.replica,
            tokens=max(flight.kept, flight.reported),
            why=why,
        )

    def _waits(self, flight: Flight, blocked: str) -> str:
        losses = max(flight.losses, flight.group.losses)
        if blocked:
            return blocked
        if losses:
            return f"was there at {losses} losses of a replica, waits for one with few suspects"
        if flight.avoid:
            return f"failed on {_listed(map(repr, sorted(flight.avoid)))}, waits for another replica"
        limit = self._policy.concurrency.get(flight.group.tag)
        if limit is not None and not flight.admitted:
            return f"its environment {flight.group.tag!r} has {limit} under way (concurrency)"
        return "no slot is free" if self._replicas.full else "waits for its turn, or for KV that is free"

    def _runs(self, flight: Flight, now: float) -> str:
        words = [f"generates, deadline {self._policy.generate_deadline_s:g} s"]
        if flight.stopping:
            words = ["was asked to stop"]
        if flight.replica is None or flight.replica not in self._replicas:
            words.append("its replica has left")
        if flight.reported_at > flight.since:
            words.append(f"last report {now - flight.reported_at:.1f} s ago")
        if flight.twin is not None:
            words.append(f"and on {flight.twin.replica!r} for {now - flight.twin.since:.1f} s")
        if flight.failures:
            words.append(f"failed {flight.failures} times")
        return ", ".join(words)


def _listed(words: Iterable[str]) -> str:
    everything = list(words)
    more = len(everything) - SHOWN
    return ", ".join(everything[:SHOWN]) + (f" and {more} more" if more > 0 else "")
