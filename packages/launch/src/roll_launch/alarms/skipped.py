"""Updates whose loss or gradient was not finite: named, counted, and the end of a run that takes no other."""

import logging
from collections.abc import Callable, Mapping

from roll_learners.update import SkippedUpdate, StepResult

from roll_launch.alarms.detector import Memory, Reading, number
from roll_launch.config import SkippedUpdateConfig
from roll_launch.errors import RollLaunchError

logger = logging.getLogger(__name__)

NAMED = 32
"""Samples of an update that are named; beyond them they are counted."""

QUOTED = 3
"""Steps of a standstill whose samples its error names: the first and the last ones."""


class SkippedUpdatesError(RollLaunchError):
    """Step after step, no update was finite; the weights are those of before."""


class SkippedUpdates:
    """Updates that a learner did not take. No weight has changed: the step is lost, not the policy."""

    name = "skipped_update"
    steps = 1
    advice = (
        "Look at the named samples in rollouts/ or the data; a lower learning rate or float32 helps where "
        "activations overflow."
    )

    def __init__(self, config: SkippedUpdateConfig) -> None:
        self._end_after = config.end_after
        self._told: list[str] = []
        self._standstill: list[str] = []
        self.memory: Memory = []

    def take(self, step: int, trained: StepResult, name: Callable[[int], str]) -> None:
        """Takes in what a step skipped, and logs it.

        Args:
            step: Of the stage.
            trained: What the trainer returned.
            name: What to call the sample at a position of the step's batch.
        """
        self._told = [_told(skipped, name) for skipped in trained.skipped]
        for told in self._told:
            logger.warning("step %d: %s", step, told)
        if trained.updates:
            self.memory, self._standstill = [], []
        elif trained.skipped:
            self.memory.append([float(step)])
            self._standstill.append(f"step {step}: {'; '.join(self._told)}")

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """Of the step that was taken in last."""
        count = number(metrics, "actor/skipped_steps")
        if count is None:
            return None
        return Reading(
            fault=count > 0,
            metric="actor/skipped_steps",
            value=count,
            threshold=0.0,
            said="; ".join(self._told) or f"{count:.0f} updates were skipped",
        )

    def refuse_standstill(self) -> None:
        """Ends a run that has taken no update for too long.

        Raises:
            SkippedUpdatesError: So many steps in a row were skipped; names the samples of the first and last.
        """
        length = len(self.memory)
        if self._end_after is None or length < self._end_after:
            return
        quoted = list(self._standstill)
        if len(quoted) < length:
            quoted.insert(0, f"({length - len(quoted)} of them before the resume, named in the log)")
        if len(quoted) > QUOTED:
            quoted = [quoted[0], "...", *quoted[1 - QUOTED :]]
        raise SkippedUpdatesError(
            f"no update was taken in {length} steps in a row (alarms.skipped_update.end_after is "
            f"{self._end_after}), because loss or gradient was not finite: {' '.join(quoted)}"
        )


def _told(skipped: SkippedUpdate, name: Callable[[int], str]) -> str:
    names = [name(position) for position in skipped.samples[:NAMED]]
    if len(skipped.samples) > NAMED:
        names.append(f"and {len(skipped.samples) - NAMED} more")
    return (
        f"update {skipped.update} skipped: the {skipped.what} is not finite (loss {skipped.loss:.4g}, "
        f"gradient norm {skipped.gradient_norm:.4g}) in {', '.join(names)}"
    )
