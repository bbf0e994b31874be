"""How much of its lower bound a real step reached, and where the rest went. Called with a run's own records.

Nothing needs to be known of engines: a completion's seconds in its slot are taken as they were. With S
slots and completions that held one for d_i seconds, no order of them could have ended before max(d_i), nor
before sum(d_i) / S. (The bounds of `bounds`, which know the engines, are lower: sequences slow each other.)
"""

from dataclasses import asdict, dataclass

import numpy as np

from roll_scheduler.simulator.errors import SimulationError

__all__ = ["StepAttribution", "attribute_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttribution:
    """Seconds of one step; `work_s + empty_s + tail_s` is `rollout_s`, and with the others that is `step_s`.

    Attributes:
        step_s: All of it.
        rollout_s: From the beginning to the end of the last generation.
        bound_s: Least that the rollout could have taken in another order: the greater of the next two.
        critical_path_s: The longest generation.
        work_s: All generations, if all slots had been busy all the time.
        empty_s: Lost to slots that were empty while generations were still to be sent out.
        tail_s: Lost to slots that were empty after the last was sent out.
        reward_s: Grading after the last generation.
        train_s: Training.
        sync_s: Weight sync.
        other_s: What none of these explains.
    """

    step_s: float
    rollout_s: float
    bound_s: float
    critical_path_s: float
    work_s: float
    empty_s: float
    tail_s: float
    reward_s: float
    train_s: float
    sync_s: float
    other_s: float

    @property
    def of_bound(self) -> float:
        """`bound_s` as a share of `rollout_s`, 0 to 1; 1 for a step without a rollout."""
        return self.bound_s / self.rollout_s if self.rollout_s > 0 else 1.0

    def metrics(self) -> dict[str, float]:
        """All of it, named `scheduler/step/...`."""
        return {f"scheduler/step/{name}": value for name, value in asdict(self).items()} | {
            "scheduler/step/of_bound": self.of_bound
        }


def attribute_step(
    starts: np.ndarray,
    ends: np.ndarray,
    *,
    slots: int,
    began: float | None = None,
    graded: float | None = None,
    train_s: float = 0.0,
    sync_s: float = 0.0,
    step_s: float | None = None,
) -> StepAttribution:
    """Where the seconds of a step went.

    Args:
        starts: float [N]: when each generation of the step got its slot; any clock, in seconds. Those that
            were aborted count too.
        ends: float [N]: when it left the slot.
        slots: Slots of all replicas together, >= 1.
        began: When the batch was asked for; None is the first start.
        graded: When the last grading was over; None is the end of the last generation.
        train_s: Seconds of training after that.
        sync_s: Seconds of the weight sync.
        step_s: Seconds of the whole step; None is the sum of what is given.

    Raises:
        SimulationError: If there is no slot, shapes differ, a number is not finite, or a generation ended
            before it started or started before the step.
    """
    starts, ends = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    _check_shapes(starts, ends, slots)
    origin = began if began is not None else float(starts.min()) if starts.size else 0.0
    last = float(ends.max()) if starts.size else origin
    _check_times(starts, ends, origin, [last if graded is None else graded, train_s, sync_s, step_s or 0.0])
    busy = float((ends - starts).sum())
    sent = float(starts.max()) if starts.size else origin
    early = float((np.minimum(ends, sent) - starts).sum())
    rollout_s = last - origin
    work_s = busy / slots
    empty_s = (sent - origin) - early / slots
    reward_s = max(0.0, (last if graded is None else graded) - last)
    known_s = rollout_s + reward_s + train_s + sync_s
    whole_s = known_s if step_s is None else step_s
    critical_s = float((ends - starts).max()) if starts.size else 0.0
    return StepAttribution(
        step_s=whole_s,
        rollout_s=rollout_s,
        bound_s=max(critical_s, work_s),
        critical_path_s=critical_s,
        work_s=work_s,
        empty_s=empty_s,
        tail_s=rollout_s - work_s - empty_s,
        reward_s=reward_s,
        train_s=train_s,
        sync_s=sync_s,
        other_s=whole_s - known_s,
    )


def _check_shapes(starts: np.ndarray, ends: np.ndarray, slots: int) -> None:
    if slots < 1 or starts.ndim != 1 or starts.shape != ends.shape:
        raise SimulationError(
            f"attribute_step: got {slots} slots, starts of shape {starts.shape}, ends of shape {ends.shape}, "
            "allowed are >= 1 slot and equal shapes [N]"
        )


def _check_times(starts: np.ndarray, ends: np.ndarray, origin: float, given: list[float]) -> None:
    times = np.concatenate([starts, ends, [origin, *given]])
    backwards = (ends < starts).any() or (starts < origin).any()
    if not np.isfinite(times).all() or backwards or min(given[1:]) < 0:
        raise SimulationError(
            "attribute_step: got times that are not finite, negative, or a generation that ended before it "
            "started or started before the step began; allowed is began <= start <= end"
        )
