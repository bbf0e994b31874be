"""Grader `math`: the answer of a response is mathematically the reference (extra `math`).

What is read from a response never runs, and comparing happens in worker processes with a deadline and a
limit on memory, so that no answer can stop grading. See `roll_rewards.mathematics`.
"""

import functools
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from roll_rewards.errors import RewardError
from roll_rewards.extraction import SOURCES, Source, Thinking, extract_answer, visible_part
from roll_rewards.mathematics.comparison import MAX_ANSWER_CHARS
from roll_rewards.mathematics.conventions import (
    Conventions,
    Order,
    Percent,
    Rounding,
    Unevaluated,
    Units,
    Unreduced,
)
from roll_rewards.scores import REAL_TYPES, Score, failed
from roll_rewards.shared_pools import shared_pool
from roll_rewards.workers import WorkerError, WorkerLimits, WorkerTimedOut

_JUDGE = "roll_rewards.mathematics.comparison:judge"
_PRELOAD = ("roll_rewards.mathematics.comparison", "mpmath", "math_verify")
_LIMITS = WorkerLimits(memory_mb=4096, result_mb=0.1, request_mb=16.0)
_NUMERAL = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?")
_PARSED_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Math:
    """1 if the response's answer equals the reference, else 0; a response without an answer is unparsed.

    Numbers, fractions, percentages, units, expressions, equations, inequalities, intervals, sets, tuples,
    matrices, several answers and words are compared by what they mean. An answer that takes longer than
    `timeout_s` or too much memory scores 0 with `timed_out`; a reference that does is a failure of kind
    `reference`, as is an empty one. `parsed` is the answer; the part `boxed` says whether it stood in a box.

    Example: `Math(thinking="require", sources=("box",))`.

    Attributes:
        sources: Where the answer is looked for, in order: `box`, `tag`, `phrase`, `whole`, `formula`,
            `number`; see `extract_answer`.
        thinking: What tags of reasoning mean: `strip`, `ignore` or `require`; see `visible_part`.
        open_tag: Begins the reasoning.
        close_tag: Ends it.
        percent: See `Conventions`, like the next six.
        units: See `Conventions`.
        rounding: See `Conventions`.
        rel_tolerance: See `Conventions`.
        unreduced: See `Conventions`.
        unevaluated: See `Conventions`.
        order: See `Conventions`.
        timeout_s: Wall seconds for one comparison, above 0.
        workers: Processes that compare, at least 1; graders on one event loop share them.

    Raises:
        RewardError: math-verify is not installed or an option is out of its range.
    """

    sources: tuple[Source, ...] = SOURCES
    thinking: Thinking = "strip"
    open_tag: str = "<think>"
    close_tag: str = "</think>"
    percent: Percent = "either"
    units: Units = "match"
    rounding: Rounding = "exact"
    rel_tolerance: float = 0.0
    unreduced: Unreduced = "accept"
    unevaluated: Unevaluated = "accept"
    order: Order = "any"
    timeout_s: float = 5.0
    workers: int = 2

    def __post_init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise RewardError("grader 'math' needs math-verify: pip install 'roll-rewards[math]'")
        object.__setattr__(self, "sources", tuple(self.sources))
        if not self.sources or not self.open_tag or not self.close_tag:
            raise RewardError(
                "options 'sources', 'open_tag' and 'close_tag' of grader 'math' must not be empty, "
                f"got {self.sources!r}, {self.open_tag!r}, {self.close_tag!r}"
            )
        if not self.timeout_s > 0 or self.workers < 1:
            raise RewardError(
                "grader 'math' needs 'timeout_s' above 0 and 'workers' of at least 1, "
                f"got {self.timeout_s} and {self.workers}"
            )
        self._conventions()

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict on a reference that is a text, a number, or a list of such. See `Grader.grade`."""
        wanted = _reference_texts(reference)
        if not wanted:
            message = f"grader 'math' needs a text, a number or a list of them, got {reference!r:.80}"
            return failed("reference", message)
        visible = visible_part(
            response, thinking=self.thinking, open_tag=self.open_tag, close_tag=self.close_tag
        )
        found = extract_answer(visible, self.sources)
        if found is None:
            return Score(value=0.0, parts={"boxed": 0.0})
        outcome = await self._any_equal(found.text, wanted)
        if isinstance(outcome, Score):
            return outcome
        return Score(
            value=float(outcome == "equal"),
            parsed=found.text[:_PARSED_CHARS],
            parts={"boxed": float(found.source == "box")},
            timed_out=outcome == "timed out",
        )

    async def _any_equal(self, answer: str, wanted: tuple[str, ...]) -> str | Score:
        """`equal`, `different`, `timed out`, or the failure that a reference is."""
        outcomes = set()
        for reference in wanted:
            outcome = await self._compare(answer, reference)
            if isinstance(outcome, Score) or outcome == "equal":
                return outcome
            outcomes.add(outcome)
        return "timed out" if "timed out" in outcomes else "different"

    async def _compare(self, answer: str, reference: str) -> str | Score:
        plain = _same_numerals(answer, reference)
        if plain is not None and not self.rel_tolerance and self.rounding == "exact":
            return "equal" if plain else "different"
        if len(answer) > MAX_ANSWER_CHARS:
            return "different"
        try:
            outcome = await self._judge(answer, reference)
        except WorkerError as error:
            return await self._blame(reference, error)
        if outcome == "no reference":
            return failed("reference", f"grader 'math' cannot read the reference {reference!r:.80}")
        return outcome

    async def _judge(self, answer: str, reference: str) -> str:
        pool = shared_pool("math", workers=self.workers, preload=_PRELOAD, limits=_LIMITS)
        outcome = await pool.call(
            _JUDGE, (answer, reference, self._conventions()), deadline_s=self.timeout_s, label=answer[:80]
        )
        return str(outcome)

    async def _blame(self, reference: str, error: WorkerError) -> str | Score:
        """Whose fault it was that a comparison was cut: a good reference is soon told apart from 0."""
        try:
            await self._judge("0", reference)
        except WorkerError as second:
            kind = "reference" if isinstance(second, WorkerTimedOut) else "error"
            return failed(
                kind, f"grader 'math' cannot judge the reference {reference!r:.80}: {second} ({error})"
            )
        return "timed out"

    def _conventions(self) -> Mapping[str, object]:
        """Plain values for the worker.

        Raises:
            RewardError: One of them is out of its range.
        """
        values: dict[str, object] = {
            "percent": self.percent,
            "units": self.units,
            "rounding": self.rounding,
            "rel_tolerance": float(self.rel_tolerance),
            "unreduced": self.unreduced,
            "unevaluated": self.unevaluated,
            "order": self.order,
        }
        Conventions(**values)  # type: ignore[arg-type]  # the fields above have its types
        return values


def _reference_texts(reference: object) -> tuple[str, ...]:
    """The accepted answers; none when one of them is no answer."""
    items = reference if isinstance(reference, list | tuple) else [reference]
    texts = tuple(_reference_text(item) for item in items)
    return texts if texts and all(texts) else ()


def _reference_text(item: object) -> str:
    if isinstance(item, REAL_TYPES) and not isinstance(item, bool):
        return str(item)
    if not isinstance(item, str):
        return ""
    return _bare_reference(item)


@functools.lru_cache(maxsize=4096)
def _bare_reference(text: str) -> str:
    """Data sets keep whole solutions as well as bare answers."""
    if "####" in text:
        text = text.rpartition("####")[2]
    boxed = extract_answer(text, ("box", "tag"))
    return (boxed.text if boxed is not None else text).strip()


def _same_numerals(answer: str, reference: str) -> bool | None:
    """Whether two plain numerals are equal; None when one is anything else."""
    one, other = answer.strip(" $.").replace("\\ ", ""), reference.strip(" $")
    if _NUMERAL.fullmatch(one) and _NUMERAL.fullmatch(other):
        return Fraction(one) == Fraction(other)
    return None
