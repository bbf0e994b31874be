"""A trainer as divisible work on devices that come and go. Used by elastic runs and by a re-created peer."""

import math

__all__ = ["StreamTrainer"]

ROUNDING_S = 1e-9
"""Work that counts as none: it is a sum of floats."""


class StreamTrainer:
    """Trains on what is offered, as long as there is some, with all the devices that it has.

    Time is passed in and never goes back. Work is in seconds of one device and shared evenly.

    Attributes:
        devices: Devices that it has now.
        offered_s: Work of the batch that is there to be done.
        done_s: That part of it which is done.
        busy_s: Device seconds of training over the run.
        idle_s: Device seconds in which a device had nothing to train on.
    """

    def __init__(self) -> None:
        self.devices = 0
        self.offered_s = 0.0
        self.done_s = 0.0
        self.busy_s = 0.0
        self.idle_s = 0.0
        self._now = 0.0

    @property
    def left_s(self) -> float:
        """Work that is offered and not done."""
        left = self.offered_s - self.done_s
        return left if left > ROUNDING_S else 0.0

    def settle(self, now: float) -> None:
        """Works up to `now`."""
        span = self.devices * (now - self._now)
        work = min(span, max(0.0, self.offered_s - self.done_s))
        self.done_s += work
        self.busy_s += work
        self.idle_s += span - work
        self._now = now

    def next_at(self) -> float:
        """When it has nothing left to do, infinity if that is so already or it has no device."""
        if not self.devices or not self.left_s:
            return math.inf
        return self._now + self.left_s / self.devices

    def offer(self, work_s: float, now: float) -> None:
        """So much of the batch is there now, what is done included."""
        self.settle(now)
        self.offered_s = work_s

    def add(self, devices: int, now: float) -> None:
        """Devices come, or go if it is a negative number."""
        self.settle(now)
        self.devices += devices

    def begin(self, now: float) -> None:
        """The next batch: nothing is offered."""
        self.settle(now)
        self.offered_s = self.done_s = 0.0
