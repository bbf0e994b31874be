"""What happened to tickets and groups, in numbers, over the run and since the last batch."""

from collections import Counter
from collections.abc import Mapping, Sequence

from roll_scheduler.errors import SchedulerError, StarvationError, TooManyFailures
from roll_scheduler.policy import SchedulerPolicy

__all__ = ["Ledger"]

FAILED = "failed"
REQUEUED = "requeued"
SHOWN = 8
"""Rewards of a group that an error message lists."""


class Ledger:
    """Counters of one core.

    Args:
        ends: Tickets that ended before a resume.
        totals: Counts of before a resume.

    Attributes:
        ends: Tickets that ended, by how: `"delivered"`, `"failed"` (out of retries), `"group_failed"` (its
            group lost too many members), `"stale"`, `"filter:<name>"`, `"closed"`, `"surplus"` (others were
            quicker), `"quarantined"` (its prompt may kill replicas), `"deferred"` (to a long round, where it
            begins anew), `"requeued"` (stale: it begins anew at once).
        failures: Failed attempts since the last batch, by kind.
        dropped: Groups dropped since the last batch, by reason.
        totals: Counts over the run, see `roll_scheduler.reports.metrics`.
    """

    def __init__(self, *, ends: Mapping[str, int], totals: Mapping[str, int]) -> None:
        self.ends: Counter[str] = Counter(ends)
        self.failures: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.totals: Counter[str] = Counter(totals)
        self._seconds = {"kept": 0.0, "aborted": 0.0}
        self._timed = {"kept": 0, "aborted": 0}
        self._last_failure = ""
        self._last_values: dict[str, Sequence[float]] = {}
        self._requeued = 0
        self._verdict: SchedulerError | None = None
        self._judged = False

    def failure(self, kind: str, message: str) -> None:
        """Counts a failed attempt."""
        self._judged = False
        self.failures[kind] += 1
        self.totals["failed"] += 1
        self._last_failure = f"{kind}: {message}"

    def drop(self, reason: str) -> None:
        """Counts a dropped group."""
        self._judged = False
        self.dropped[reason] += 1
        self.totals["dropped_groups"] += 1

    def refused(self, reason: str, values: Sequence[float]) -> None:
        """Notes the rewards of a group that a filter is about to drop, for the error that may follow."""
        self._last_values[reason] = values

    def requeue(self) -> None:
        """Counts a group that was stale and begins anew."""
        self._judged = False
        self._requeued += 1
        self.totals["requeued_groups"] += 1

    def begun_anew(self, tokens: int) -> None:
        """Counts a partial completion that was given up with so many tokens."""
        self.totals["begun_anew"] += 1
        self.totals["discarded_tokens"] += tokens

    def kept(self, completions: int, seconds: float) -> None:
        """Counts delivered completions, by how long their generation took in all."""
        self.totals["kept"] += completions
        self._timed["kept"] += completions
        self._seconds["kept"] += seconds

    def aborted(self, seconds: float) -> None:
        """Counts a generation that was aborted by how long it had run."""
        self.totals["aborted"] += 1
        self._timed["aborted"] += 1
        self._seconds["aborted"] += seconds

    def length_bias(self) -> dict[str, float]:
        """Mean seconds of kept and of aborted generations, since the resume if there was one: what
        over-provisioning does to the data."""
        return {
            f"{what}_s": seconds / self._timed[what]
            for what, seconds in self._seconds.items()
            if self._timed[what]
        }

    def totals_with(self, *, trained: int) -> dict[str, int]:
        """Counts over the run once so many tickets more are trained, as Python's integers."""
        return {name: int(count) for name, count in (self.totals + Counter(trained=trained)).items()}

    def clear_batch(self) -> tuple[dict[str, int], dict[str, int]]:
        """Failures and drops since the last call."""
        failures, dropped = dict(self.failures), dict(self.dropped)
        self._judged = False
        self.failures.clear()
        self.dropped.clear()
        self._requeued = 0
        return failures, dropped

    def verdict(self, policy: SchedulerPolicy) -> SchedulerError | None:
        """The error that the counts for the coming batch amount to, if any. Worked out once a change."""
        if not self._judged:
            self._verdict, self._judged = self._judge(policy), True
        return self._verdict

    def _judge(self, policy: SchedulerPolicy) -> SchedulerError | None:
        failed = self.failures.total()
        if failed > policy.max_failures:
            return TooManyFailures(
                f"{failed} attempts failed for one batch ({_listed(self.failures)}), allowed are "
                f"{policy.max_failures} (max_failures); the last one: {self._last_failure}",
                self.failures,
            )
        refused = self.dropped.total() - self.dropped[FAILED] + self._requeued
        allowed = policy.max_refills * policy.groups_per_batch
        if refused > allowed:
            counts = self.dropped + Counter({REQUEUED: self._requeued})
            return StarvationError(
                f"{refused} groups were refused for one batch of {policy.groups_per_batch} "
                f"({_listed(counts)}), allowed are {allowed} (max_refills x groups_per_batch)"
                f"{self._what_filters_saw(counts)}",
                counts,
            )
        return None

    def _what_filters_saw(self, counts: Counter[str]) -> str:
        """The rewards that each filter refused last, as a sentence."""
        seen = [
            f"{reason} {[round(value, 4) for value in values[:SHOWN]]}{' ...' if values[SHOWN:] else ''}"
            for reason, values in sorted(self._last_values.items())
            if counts[reason]
        ]
        return f"; the rewards refused last: {', '.join(seen)}" if seen else ""


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{key} {count}" for key, count in sorted(counts.items()))
