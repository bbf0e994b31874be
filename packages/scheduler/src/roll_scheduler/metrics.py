"""Numbers that describe a scheduler: what is pending now and what happened over the run."""

from collections.abc import Mapping, Sequence

from roll_scheduler.ticket import PendingTicket, TicketState

__all__ = ["scheduler_metrics"]

STATES = (TicketState.WAITING, TicketState.RUNNING, TicketState.GRADING)
TOTALS = (
    "failed", "retried", "redispatched", "tokens", "kept", "aborted", "delivered_groups", "deferred_groups",
    "dropped_groups",
)  # fmt: skip


def scheduler_metrics(
    pending: Sequence[PendingTicket], totals: Mapping[str, int], gauges: Mapping[str, float]
) -> dict[str, float]:
    """Metrics named `scheduler/...`: tickets and greatest age by state, counts over the run, and the gauges.

    Args:
        pending: Tickets that are being waited for.
        totals: Counts over the run; those that are absent are 0.
        gauges: Further values of this moment, by name without the prefix.
    """
    values: dict[str, float] = {}
    for state in STATES:
        ages = [item.age_s for item in pending if item.state is state]
        values[f"scheduler/{state}"] = float(len(ages))
        values[f"scheduler/oldest_{state}_s"] = max(ages, default=0.0)
    values |= {f"scheduler/{name}": float(totals.get(name, 0)) for name in TOTALS}
    return values | {f"scheduler/{name}": value for name, value in gauges.items()}
