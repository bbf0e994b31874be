"""What a grader answers: a verdict (`Score`) or the honest absence of one (`Failure`).

Graders make scores, `grade_with_deadline` completes them, pipelines turn `value` into a reward and
log `summarise_scores`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from roll_rewards.errors import RewardError

REAL_TYPES = (float, int, np.floating, np.integer, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no verdict.

    Example: `Failure(kind="deadline", message="Exact gave no score within 10 s")`.

    Attributes:
        kind: `deadline` (no answer in time), `error` (the grader raised) or `invalid` (its answer is
            not a finite score); graders may add kinds of their own.
        message: One line for a person; names the grader and the cause.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The verdict on one response, or the failure that stands in its place.

    Example: `Score(value=1.0, parts={"format": 1.0}, parsed="42", seconds=0.003)`.

    Attributes:
        value: The verdict, a finite number, by custom in 0..1; NaN exactly when there is a failure.
        parts: Named components of the verdict, finite, for metrics.
        parsed: The answer as it was read from the response; None when none could be read.
        timed_out: The response itself exceeded a limit of the test (a verdict, not a failure).
        failure: Set when there is no verdict; such a score must never be trained as a zero.
        seconds: Wall time that grading took, 0 until `grade_with_deadline` fills it in.

    Raises:
        RewardError: `value` is not a number, or a failure came with a finite value.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    parsed: str | None = None
    timed_out: bool = False
    failure: Failure | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        value: object = self.value
        if not isinstance(value, REAL_TYPES):
            raise RewardError(f"Score.value must be a number, got {type(value).__name__} {value!r:.80}")
        object.__setattr__(self, "value", float(value))
        if self.failure is not None and not math.isnan(self.value):
            raise RewardError(
                f"a Score with a failure has value nan, got {self.value} with failure {self.failure.kind!r}: "
                "a failure is not a reward"
            )


def failed(kind: str, message: str, *, seconds: float = 0.0) -> Score:
    """The score that says that there is no verdict.

    Args:
        kind: See `Failure.kind`.
        message: See `Failure.message`.
        seconds: Wall time spent, at least 0.
    """
    return Score(value=math.nan, failure=Failure(kind=kind, message=message), seconds=seconds)


def summarise_scores(scores: Iterable[Score]) -> dict[str, float]:
    """Metrics of a batch of scores; failures are counted apart and enter no mean.

    Args:
        scores: Any number of scores, verdicts and failures mixed.

    Returns:
        `rewards/{mean,std,min,max}` over the verdicts (NaN when there is none),
        `rewards/parsed_rate` = verdicts with a parsed answer / verdicts, the counts
        `rewards/{graded,unparsed,timed_out,failed}` and `rewards/failed/<kind>`,
        `rewards/seconds/{mean,max}` over everything, and `rewards/parts/<name>/mean` over the
        verdicts that have that part.
    """
    everything = list(scores)
    verdicts = [score for score in everything if score.failure is None]
    values = np.array([score.value for score in verdicts] or [math.nan])
    seconds = np.array([score.seconds for score in everything] or [0.0])
    metrics = {
        "rewards/mean": float(values.mean()),
        "rewards/std": float(values.std()),
        "rewards/min": float(values.min()),
        "rewards/max": float(values.max()),
        "rewards/parsed_rate": float(np.mean([float(s.parsed is not None) for s in verdicts] or [math.nan])),
        "rewards/graded": float(len(verdicts)),
        "rewards/unparsed": float(sum(score.parsed is None for score in verdicts)),
        "rewards/timed_out": float(sum(score.timed_out for score in verdicts)),
        "rewards/failed": float(len(everything) - len(verdicts)),
        "rewards/seconds/mean": float(seconds.mean()),
        "rewards/seconds/max": float(seconds.max()),
    }
    kinds = Counter(score.failure.kind for score in everything if score.failure is not None)
    metrics |= {f"rewards/failed/{kind}": float(count) for kind, count in sorted(kinds.items())}
    for name in sorted({name for score in verdicts for name in score.parts}):
        part = [score.parts[name] for score in verdicts if name in score.parts]
        metrics[f"rewards/parts/{name}/mean"] = float(np.mean(part))
    return metrics
