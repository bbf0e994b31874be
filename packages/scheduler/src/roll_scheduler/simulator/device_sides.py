"""On which side each replica's devices are, and how long they were. Kept by elastic runs."""

import enum
from collections.abc import Iterable

__all__ = ["DeviceSides", "Side"]


class Side(enum.StrEnum):
    """Where devices are."""

    ROLLOUT = "rollout"
    TO_TRAINER = "to trainer"
    TRAINER = "trainer"
    TO_ROLLOUT = "to rollout"
    DEAD = "dead"


class DeviceSides:
    """Sides of replicas, and seconds by side.

    Args:
        replicas: Names; all begin on the side of the rollout.
        switch_s: Seconds that changing sides takes.
    """

    def __init__(self, replicas: Iterable[str], switch_s: float) -> None:
        self._switch_s = switch_s
        self._side = dict.fromkeys(replicas, Side.ROLLOUT)
        self._since = dict.fromkeys(self._side, 0.0)
        self._arrives = dict.fromkeys(self._side, 0.0)
        self._lent: list[tuple[str, tuple[float, float]]] = []
        self._seconds = dict.fromkeys(Side, 0.0)

    def side(self, replica: str) -> Side:
        """Where a replica's devices are."""
        return self._side[replica]

    def count(self, *sides: Side) -> int:
        """Replicas whose devices are on one of these sides."""
        return sum(side in sides for side in self._side.values())

    def leave(self, replica: str, side: Side, now: float) -> float:
        """Devices set out for the other side; returns when they arrive.

        What is under way still arrives where it was going before it turns back.
        """
        under_way = self._side[replica] in (Side.TO_TRAINER, Side.TO_ROLLOUT)
        start = max(now, self._arrives[replica]) if under_way else now
        self._enter(replica, side, now)
        self._arrives[replica] = start + self._switch_s
        return self._arrives[replica]

    def arrive(self, replica: str, side: Side, now: float) -> None:
        """Devices are there, or dead."""
        self._enter(replica, side, now)

    def is_due(self, replica: str, side: Side, now: float) -> bool:
        """Whether devices that were to arrive about now are still on their way there."""
        return self._side[replica] is side and self._arrives[replica] <= now

    def seconds(self, now: float) -> dict[Side, float]:
        """Device seconds by side, up to now."""
        total = dict(self._seconds)
        for replica, side in self._side.items():
            total[side] += now - self._since[replica]
        return total

    def lent(self, now: float) -> list[tuple[str, tuple[float, float]]]:
        """Which replica's devices were on the trainer's side from when to when, up to now."""
        there = [
            (replica, (self._since[replica], now))
            for replica, side in self._side.items()
            if side is Side.TRAINER
        ]
        return [*self._lent, *there]

    def _enter(self, replica: str, side: Side, now: float) -> None:
        self._seconds[self._side[replica]] += now - self._since[replica]
        if self._side[replica] is Side.TRAINER:
            self._lent.append((replica, (self._since[replica], now)))
        self._side[replica], self._since[replica] = side, now
