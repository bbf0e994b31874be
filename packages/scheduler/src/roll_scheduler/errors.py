"""What `RolloutScheduler` raises, and what callers' functions raise into it."""

from collections.abc import Mapping

__all__ = ["DeadlineExceeded", "SchedulerError", "StarvationError", "TicketFailed", "TooManyFailures"]


class SchedulerError(Exception):
    """Root of this package's errors. Survives pickling with its message and counts.

    Attributes:
        message: What happened, what was got, what is allowed, and where.
        counts: Occurrences by kind or reason, empty where nothing is counted.
    """

    def __init__(self, message: str, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.counts: dict[str, int] = dict(counts or {})

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.counts)


class StarvationError(SchedulerError):
    """So many groups were filtered or stale that a batch cannot be filled; `counts` is by reason."""


class TooManyFailures(SchedulerError):
    """More tickets failed for one batch than the policy allows; `counts` is by kind of failure."""


class DeadlineExceeded(SchedulerError):
    """A task ignored its cancellation, or nothing ran while a batch was waited for, for too long."""


class TicketFailed(SchedulerError):
    """Raised by a `generate` or `grade` function: this ticket has no result (which is not a bad result).

    The ticket is retried elsewhere as often as the policy says, then dropped and counted under `kind`.

    Attributes:
        kind: A short word that failures are counted by, for example `"engine"`.
        message: What happened.

    Raises:
        SchedulerError: If the kind is no text.
    """

    def __init__(self, kind: str, message: str) -> None:
        if not isinstance(kind, str):  # failures are sorted by it
            raise SchedulerError(f"TicketFailed.kind: got {kind!r}, allowed is text")
        super().__init__(message, {kind: 1})
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kind, self.message)
