"""When an alarm is told: at its beginning, seldom while it lasts, and at its end."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Told(StrEnum):
    """What a step says about an alarm."""

    NOTHING = "nothing"
    BEGINS = "begins"
    LASTS = "lasts"
    OVER = "over"


@dataclass(slots=True, kw_only=True)
class Episode:
    """The times of one alarm: on after `patience` faulty steps in a row, over after `quiet` sound ones.

    It is told at most every `repeat` steps, so that a fault that comes and goes floods nothing; its end is
    told if its beginning was. Steps that say nothing either way are not shown to it.

    Attributes:
        patience: Faulty steps in a row before it is on.
        quiet: Sound steps in a row before it is over.
        repeat: Steps between two times that it is told.
        on: Whether it is on.
        run: Steps in a row of the present kind, faulty or sound.
        faulty: Which kind that is.
        told_at: The step at which it was told last.
        known: Whether this beginning was told.
    """

    patience: int
    quiet: int
    repeat: int
    on: bool = False
    run: int = 0
    faulty: bool = False
    told_at: int | None = None
    known: bool = False

    def see(self, step: int, *, fault: bool) -> Told:
        """Takes in a step; returns what is to be told."""
        self.run = self.run + 1 if fault == self.faulty else 1
        self.faulty = fault
        if fault:
            self.on = self.on or self.run >= self.patience
            return self._due(step) if self.on else Told.NOTHING
        if not self.on or self.run < self.quiet:
            return Told.NOTHING
        self.on, known, self.known = False, self.known, False
        return Told.OVER if known else Told.NOTHING

    def _due(self, step: int) -> Told:
        if self.told_at is not None and step - self.told_at < self.repeat:
            return Told.NOTHING
        self.told_at = step
        told = Told.LASTS if self.known else Told.BEGINS
        self.known = True
        return told

    def state(self) -> dict[str, Any]:
        """All but the settings, as JSON can hold it."""
        settings = ("patience", "quiet", "repeat")
        return {name: value for name, value in asdict(self).items() if name not in settings}

    def restored(self, state: dict[str, Any]) -> "Episode":
        """With these settings, at the point of `state`."""
        return Episode(patience=self.patience, quiet=self.quiet, repeat=self.repeat, **state)
