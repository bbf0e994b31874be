"""Numbers that describe a scheduler: what is pending now and what happened over the run."""

from collections.abc import Iterable, Mapping

from roll_scheduler.lifecycle.flight import Flight
from roll_scheduler.ticket import TicketState

__all__ = ["scheduler_metrics"]

STATES = (TicketState.WAITING, TicketState.RUNNING, TicketState.GRADING, TicketState.READY)
TOTALS = (
    "failed", "retried", "redispatched", "tokens", "kept", "aborted", "trained", "delivered_groups",
    "deferred_groups", "dropped_groups", "requeued_groups", "quarantined_groups", "stopped", "recalled",
    "begun_anew", "discarded_tokens", "adaptive_cuts", "duplicates", "duplicates_won", "moved",
)  # fmt: skip


def scheduler_metrics(
    flights: Iterable[Flight], totals: Mapping[str, int], gauges: Mapping[str, float], *, now: float
) -> dict[str, float]:
    """Metrics named `scheduler/...`: tickets and greatest age by state, counts over the run, and the gauges.

    Of this moment: `waiting`, `running`, `grading`, `ready` (their group is not complete, or waits for its
    batch) and `training` (delivered, the next batch has not been asked for) count tickets; `oldest_waiting_s`
    and so on are the greatest ages in a state. Over the run: `failed` attempts and those `retried`;
    `redispatched` tickets whose replica was lost; `stopped` parts, and partial completions `begun_anew` with
    their `discarded_tokens`; tickets `recalled` by a pause; sampled `tokens`; `kept` completions (delivered)
    and `aborted` ones (surplus); `trained` tickets; groups that were delivered, deferred, dropped,
    quarantined, requeued; gradings cut by the adaptive deadline (`adaptive_cuts`); `duplicates` of stragglers
    that were started, those of them that won (`duplicates_won`), and stragglers that `moved`.

    Gauges besides: `over_groups` and `over_members`, over-provisioned in a short round; `draining` replicas;
    with `order="longest_first"`, of what runs, `predicted_tokens` still to come and `predicted_tail_s`, the
    seconds until the last is expected to end.

    Args:
        flights: Tickets that have not ended.
        totals: Counts over the run; those that are absent are 0.
        gauges: Further values of this moment, by name without the prefix.
        now: Time.
    """
    counts = dict.fromkeys(STATES, 0)
    oldest = dict.fromkeys(STATES, 0.0)
    for flight in flights:
        counts[flight.state] += 1
        oldest[flight.state] = max(oldest[flight.state], now - flight.since)
    values: dict[str, float] = {}
    for state in STATES:
        values[f"scheduler/{state}"] = float(counts[state])
        values[f"scheduler/oldest_{state}_s"] = oldest[state]
    values |= {f"scheduler/{name}": float(totals.get(name, 0)) for name in TOTALS}
    return values | {f"scheduler/{name}": value for name, value in gauges.items()}
