"""What can be seen of a core: tickets, reasons, numbers, and the errors that follow from them."""

from roll_scheduler.errors import DeadlineExceeded, SchedulerError
from roll_scheduler.lifecycle.flight import longest_pending
from roll_scheduler.lifecycle.wiring import Wiring
from roll_scheduler.reports.diagnosis import Diagnosis
from roll_scheduler.reports.metrics import scheduler_metrics
from roll_scheduler.reports.reasons import Reasons
from roll_scheduler.ticket import PendingTicket, TicketState

__all__ = ["CoreView"]

SHOWN_LATE = 8
"""Tickets that the error of a wait without an end shows."""


class CoreView:
    """Looks at the collaborators of a core and changes nothing.

    Args:
        wiring: The collaborators.
        reasons: Puts into words what keeps a ticket.
    """

    def __init__(self, wiring: Wiring, reasons: Reasons) -> None:
        self._wiring = wiring
        self._reasons = reasons

    def pending(self, now: float, most: int | None) -> list[PendingTicket]:
        """See `SchedulerCore.pending`."""
        return [flight.pending(now) for flight in longest_pending(self._wiring.book.flights.values(), most)]

    def pending_count(self) -> int:
        """See `SchedulerCore.pending_count`."""
        return sum(flight.state is not TicketState.READY for flight in self._wiring.book.flights.values())

    def why(self, now: float, *, paused_at: float | None, most: int | None) -> Diagnosis:
        """See `SchedulerCore.why`."""
        return self._reasons.diagnosis(
            self._wiring.book.flights.values(),
            paused_at=paused_at,
            held=self._wiring.departures.held,
            most=most,
            now=now,
        )

    def metrics(self, now: float) -> dict[str, float]:
        """See `SchedulerCore.metrics`."""
        book, ledger = self._wiring.book, self._wiring.ledger
        gauges = {
            **self._wiring.rounds.gauges(),
            "outstanding_groups": float(len(book.groups)),
            "ready_groups": float(len(book.ready)),
            "waiting_long_groups": float(len(book.deferred)),
            **self._wiring.queue.gauges(book.flights.values(), now),
            "staleness": book.mean_staleness,
            **ledger.length_bias(),
        }
        return scheduler_metrics(book.flights.values(), ledger.totals, gauges, now=now)

    def nowhere(self) -> SchedulerError | None:
        """The error that tickets wait, no replica is left and none returns; None if that is not so."""
        replicas = self._wiring.replicas
        if len(replicas) or replicas.returning:
            return None
        waiting = sum(flight.state is TicketState.WAITING for flight in self._wiring.book.flights.values())
        if not waiting:
            return None
        lost = ", ".join(f"replica {name!r} ({reason})" for name, reason in replicas.lost.items())
        return SchedulerError(f"no replica is left and {waiting} tickets wait for one; lost: {lost}")

    def stuck(self, now: float, *, paused_at: float | None) -> DeadlineExceeded:
        """The error that nothing has run for too long, with the reason."""
        idleness = self._wiring.idleness
        why = self.why(now, paused_at=paused_at, most=SHOWN_LATE)
        return DeadlineExceeded(
            f"nothing has run for {idleness.seconds(now):g} s while a batch is waited for, allowed are "
            f"{idleness.deadline_s:g} (wait_deadline_s): {why.text()}"
        )
