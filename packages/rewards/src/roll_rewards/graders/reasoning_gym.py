"""Grader `reasoning_gym`: the score that a reasoning-gym task gives by itself (extra `reasoning-gym`)."""

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from roll_rewards.errors import RewardError
from roll_rewards.scores import Score
from roll_rewards.threads import call_in_thread

Scorer = Callable[[str, dict[str, object]], float]

_OPEN, _CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym:
    """What the task's own scorer says of the answer, 0..1.

    The answer is what the last `<answer>...</answer>` encloses, or the whole response without it.
    The data set's entry (`question`, `answer`, `metadata`) comes in the column `entry`; without that
    column the reference must be the entry. Where a scorer raises on an answer, but not on the entry's
    own, the answer is at fault and scores 0; otherwise the error is the grader's.

    Attributes:
        task: Name of a reasoning-gym data set, as in `chain_sum`.

    Raises:
        RewardError: reasoning-gym is not installed or has no such task; when grading, no entry came.
    """

    task: str

    def __post_init__(self) -> None:
        _task_scorer(self.task)

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The task's verdict; `parsed` is the answer it looked at. See `Grader.grade`."""
        entry = columns.get("entry", reference)
        if not isinstance(entry, Mapping) or "answer" not in entry:
            raise RewardError(
                "grader 'reasoning_gym' needs the data set's entry (a mapping with 'answer') "
                f"in the column 'entry', got {type(entry).__name__} {entry!r:.80}"
            )
        answer, scorer = _answer(response), _task_scorer(self.task)
        value = await call_in_thread(lambda: _score(scorer, answer, dict(entry)), name=f"grader {self.task}")
        return Score(value=0.0) if value is None else Score(value=value, parsed=answer)


def _answer(response: str) -> str:
    before, close, _ = response.rpartition(_CLOSE)
    if close and _OPEN in before:
        return before.rpartition(_OPEN)[2].strip()
    return response.strip()


def _score(scorer: Scorer, answer: str, entry: dict[str, object]) -> float | None:
    """The scorer's value, None for an answer that it cannot read."""
    try:
        return float(scorer(answer, entry))
    except Exception:
        # Boundary to foreign code: some scorers raise on what they cannot parse. If this one breaks
        # on the right answer too, the next line raises.
        scorer(str(entry["answer"]), entry)
        return None


@functools.cache
def _task_scorer(task: str) -> Scorer:
    """The scoring function of a task.

    Raises:
        RewardError: reasoning-gym is not installed, has no such task, or the task no scorer of its own.
    """
    try:
        with warnings.catch_warnings():
            # cellpylib, which reasoning-gym imports, compares with `is` to a literal.
            warnings.simplefilter("ignore", SyntaxWarning)
            factory = importlib.import_module("reasoning_gym.factory")
            importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise RewardError(
            "grader 'reasoning_gym' needs the package reasoning-gym: "
            f"pip install 'roll-rewards[reasoning-gym]' ({error})"
        ) from error
    if task not in factory.DATASETS:
        near = get_close_matches(task, factory.DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RewardError(f"reasoning-gym has no task {task!r}{hint} (it has {len(factory.DATASETS)} tasks)")
    try:
        scorer: Scorer = factory.get_score_answer_fn(task)
    except Exception as error:
        # Boundary to foreign code: a task may not exist without a configuration of its own.
        raise RewardError(
            f"reasoning-gym's task {task!r} has no scorer of its own: {type(error).__name__}: {error}"
        ) from error
    return scorer
