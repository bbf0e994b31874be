"""Grader `weighted`: a sum of other graders' values, with gates and a clip."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.graders.nesting import GraderOption, nested_grader
from roll_rewards.scores import Score, failed

_KEYS = ("name", "options", "weight", "at_least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One part of a weighted sum.

    Example: `Component(grader=Exact(), weight=0.5)`.

    Attributes:
        grader: What judges this part.
        weight: Factor of its value; 0 makes it a metric alone.
        at_least: A gate: below this value the whole score is the sum's `gate_value`; None is no gate.
    """

    grader: Grader
    weight: float = 1.0
    at_least: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """The sum of weight times value over the parts, each of which is a metric as well.

    Gates are graded first; when one is closed, the others are not graded at all. A part without a verdict
    leaves the whole without one, unless it only is a metric (weight 0, no gate): then it is left out.

    Example: `Weighted(parts={"right": {"name": "exact"}, "short": Component(grader=g, weight=0.1)})`.

    Attributes:
        parts: By name, a `Component` or `{"name", "options", "weight", "at_least"}`; at least one.
        gate_value: The score when a gate is closed.
        clip: Lowest and highest score; None leaves it as it is.

    Raises:
        RewardError: There is no part, a part cannot be made, a weight is not finite, or the clip is empty.
    """

    parts: Mapping[str, Component | Mapping[str, object]]
    gate_value: float = 0.0
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise RewardError("option 'parts' of grader 'weighted' must name at least one part, got none")
        parts = {name: _component(part, name) for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)
        numbers = [self.gate_value, *(self.clip or ()), *(part.weight for part in parts.values())]
        if not all(map(math.isfinite, numbers)):
            raise RewardError(f"weights, 'gate_value' and 'clip' of 'weighted' must be finite, got {numbers}")
        if self.clip is not None and not self.clip[0] <= self.clip[1]:
            raise RewardError(f"option 'clip' of grader 'weighted' must be [low, high], got {self.clip}")

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The sum; `parsed` is the first part's that read an answer. See `Grader.grade`."""
        parts: dict[str, Component] = {n: p for n, p in self.parts.items() if isinstance(p, Component)}
        gates = {name: part for name, part in parts.items() if part.at_least is not None}
        scores = await _grade_all(gates, response, reference, columns)
        closed = any(_is_closed(part, scores[name]) for name, part in gates.items())
        if not closed:
            others = {name: part for name, part in parts.items() if name not in gates}
            scores |= await _grade_all(others, response, reference, columns)
        for name, part in parts.items():
            score = scores.get(name)
            if score is None or score.failure is None:
                continue
            if part.weight or part.at_least is not None:
                return failed(score.failure.kind, f"part {name!r}: {score.failure.message}")
            del scores[name]
        value = self.gate_value
        if not closed:
            value = sum(parts[name].weight * score.value for name, score in scores.items())
        if self.clip is not None:
            value = min(max(value, self.clip[0]), self.clip[1])
        return _summed(value, {name: scores[name] for name in parts if name in scores})


def _component(part: Component | Mapping[str, object], name: str) -> Component:
    where = f"part {name!r} of grader 'weighted'"
    if isinstance(part, Component):
        return replace(part, grader=nested_grader(part.grader, where=where))
    unknown = sorted(map(str, set(part) - set(_KEYS)))
    if unknown:
        raise RewardError(f"{where} has unknown keys {', '.join(unknown)}; it may have {', '.join(_KEYS)}")
    weight, at_least = part.get("weight", 1.0), part.get("at_least")
    for key, value in (("weight", weight), ("at_least", 0.0 if at_least is None else at_least)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RewardError(
                f"{key!r} of {where} must be a number, got {type(value).__name__} {value!r:.80}"
            )
    spec: GraderOption = {key: part[key] for key in ("name", "options") if key in part}
    return Component(
        grader=nested_grader(spec, where=where),
        weight=float(weight),  # type: ignore[arg-type]  # checked in the loop above
        at_least=None if at_least is None else float(at_least),  # type: ignore[arg-type]  # the same
    )


async def _grade_all(
    parts: Mapping[str, Component], response: str, reference: object, columns: Mapping[str, object]
) -> dict[str, Score]:
    """Every part's score, at the same time."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            name: group.create_task(_one(part.grader, response, reference, columns))
            for name, part in parts.items()
        }
    return {name: task.result() for name, task in tasks.items()}


async def _one(grader: Grader, response: str, reference: object, columns: Mapping[str, object]) -> Score:
    try:
        return await grader.grade(response, reference, **columns)
    except Exception as error:
        # Boundary to foreign graders: what they raise is this part's failure, with its name.
        return failed("error", f"{type(grader).__name__} raised {type(error).__name__}: {error}")


def _is_closed(part: Component, score: Score) -> bool:
    return part.at_least is not None and score.failure is None and score.value < part.at_least


def _summed(value: float, scores: Mapping[str, Score]) -> Score:
    parts = {name: score.value for name, score in scores.items()}
    for name, score in scores.items():
        parts |= {f"{name}/{inner}": inner_value for inner, inner_value in score.parts.items()}
    parsed = next((score.parsed for score in scores.values() if score.parsed is not None), None)
    return Score(
        value=value, parts=parts, parsed=parsed, timed_out=any(score.timed_out for score in scores.values())
    )
