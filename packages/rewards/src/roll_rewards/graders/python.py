"""Grader `python`: a function of the user's own, named by its import path, in any of the usual signatures."""

from dataclasses import dataclass

from roll_rewards.adapters.calls import Row
from roll_rewards.adapters.function import load_functions, score_row
from roll_rewards.adapters.styles import STYLES
from roll_rewards.errors import RewardError
from roll_rewards.scores import Score, failed
from roll_rewards.shared_pools import shared_pool
from roll_rewards.workers import WorkerTimedOut


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCallable:
    """What a user's function says, sync (then run in a thread) or async.

    The function is called with those of `response`, `reference` and the row's columns that it
    declares as parameters, by name; with all of them if it has `**columns`. It returns a number, a
    bool, a `Score`, or a mapping with `score` (its other numbers become parts, and a text under
    `parsed` the parsed answer).

    Functions written for TRL, verl, OpenRLHF, slime, AReaL, verifiers or reasoning-gym are known by their
    parameters and called their way; a verifiers rubric is the weighted sum of its functions. `STYLES`
    lists the signatures.

    Example: `PythonCallable(callable="my_rewards:brevity")` for

        def brevity(response: str, target_length: int) -> float: ...

    Attributes:
        callable: `module:function`; the function may be nested as `module:Class.method`.
        style: `auto`, or a name of `STYLES` when the parameters' names mislead.
        isolated: Whether the function runs in a worker process, which is killed when it takes longer than
            `timeout_s`: such a row is a failure of kind `deadline`. Rows must be picklable then.
        timeout_s: Wall seconds of one isolated call, above 0.
        workers: Worker processes of isolated calls, at least 1.

    Raises:
        RewardError: The function cannot be imported or cannot be called this way; when grading, a
            column that it requires is missing or its answer is none of the above.
    """

    callable: str
    style: str = "auto"
    isolated: bool = False
    timeout_s: float = 30.0
    workers: int = 2

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or self.workers < 1:
            raise RewardError(
                "grader 'python' needs 'timeout_s' above 0 and 'workers' of at least 1, "
                f"got {self.timeout_s} and {self.workers}"
            )
        if self.style != "auto" and self.style not in STYLES:
            raise RewardError(
                f"option 'style' of grader 'python' is auto or one of {', '.join(STYLES)}, got {self.style!r}"
            )
        load_functions(self.callable, self.style)

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The function's verdict as a score. See `Grader.grade`."""
        if self.isolated:
            return await self._grade_isolated(response, reference, columns)
        row = Row(response=response, reference=reference, columns=columns)
        return await score_row(load_functions(self.callable, self.style), row)

    async def _grade_isolated(self, response: str, reference: object, columns: dict[str, object]) -> Score:
        pool = shared_pool(f"python {self.callable}", workers=self.workers)
        try:
            answer = await pool.call(
                "roll_rewards.adapters.function:score_in_worker",
                (self.callable, self.style, response, reference, columns),
                deadline_s=self.timeout_s,
                label=response[:80],
            )
        except WorkerTimedOut as error:
            return failed("deadline", f"{self.callable} gave no score: {error}")
        if not isinstance(answer, Score):
            raise RewardError(
                f"{self.callable} must return a score, got {type(answer).__name__} {answer!r:.80}"
            )
        return answer
