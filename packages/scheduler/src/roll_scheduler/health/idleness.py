"""Since when a batch is waited for while nothing runs. Kept by the core: no wait is without an end."""

import math

__all__ = ["Idleness"]


class Idleness:
    """A clock that runs while nothing else does.

    Args:
        deadline_s: Seconds that it may run.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._since: float | None = None

    @property
    def expires_at(self) -> float | None:
        """When it has run for too long, None while something else runs."""
        return None if self._since is None else self._since + self.deadline_s

    def note(self, idle: bool, now: float) -> None:
        """Whether nothing runs now although a batch is waited for; a time that is NaN tells nothing."""
        if not idle:
            self._since = None
        elif self._since is None and not math.isnan(now):
            self._since = now

    def seconds(self, now: float) -> float:
        """For how long it has run."""
        return 0.0 if self._since is None else now - self._since
