"""A reward function of any library as one thing to call. Called by `graders.python`, here or in a worker."""

import asyncio
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from roll_rewards.adapters.answers import as_score
from roll_rewards.adapters.calls import Row, arguments_for
from roll_rewards.adapters.styles import STYLES, Style, detect_style, parameters_of
from roll_rewards.errors import RewardError
from roll_rewards.scores import Score
from roll_rewards.threads import call_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """A function with its style and weight.

    Example: `RewardFunction(path="my:fn", function=fn, parameters=[...], style="trl")`.

    Attributes:
        path: Import path, for messages.
        function: What is called.
        parameters: Its parameters.
        style: How it is called.
        weight: Its share in a rubric; 1 for a lone function.
        name: Its name in a rubric.
    """

    path: str
    function: Callable[..., object]
    parameters: list[inspect.Parameter]
    style: Style
    weight: float = 1.0
    name: str = ""

    async def score(self, row: Row) -> Score:
        """What the function says of a row; a blocking function runs in a thread.

        Raises:
            RewardError: A required argument is missing, or the answer is no score.
        """
        arguments = arguments_for(self.style, self.parameters, row, self.path)
        if inspect.iscoroutinefunction(self.function):
            answer = await self.function(**arguments)
        else:
            answer = await call_in_thread(lambda: self.function(**arguments), name=f"grader {self.path}")
            if inspect.isawaitable(answer):
                answer = await answer
        score = as_score(answer, self.path, none_is_inapplicable=self.style == "trl")
        if row.metrics and score.failure is None:
            score = replace(score, parts={**row.metrics, **score.parts})
        return score


def load_functions(path: str, style: str = "auto") -> list[RewardFunction]:
    """The function that an import path names, or the functions of a verifiers rubric.

    Args:
        path: `module:name` or `module:Class.name`.
        style: A style by name, or `auto` to detect it.

    Raises:
        RewardError: Nothing can be imported or called there, or no style fits.
    """
    if style != "auto" and style not in STYLES:
        raise RewardError(f"a style is 'auto' or one of {', '.join(STYLES)}, got {style!r}")
    found = _imported(path)
    members = _rubric_members(found)
    if members is not None:
        return [
            _reward_function(function, f"{path} ({name})", style, weight=weight, name=name)
            for name, function, weight in members
        ]
    if not callable(found):
        raise RewardError(f"{path!r} is a {type(found).__name__}, which cannot be called")
    return [_reward_function(found, path, style)]


async def score_row(functions: list[RewardFunction], row: Row) -> Score:
    """One function's score, or a rubric's: the sum of weight times value, each function a part.

    Raises:
        RewardError: See `RewardFunction.score`.
    """
    scores = [await function.score(replace(row, metrics={})) for function in functions]
    if len(functions) == 1 and not functions[0].name:
        return scores[0]
    broken = next((score for score in scores if score.failure is not None), None)
    if broken is not None:
        return broken
    pairs = list(zip(functions, scores, strict=True))
    parts = {function.name: score.value for function, score in pairs}
    return Score(value=sum(function.weight * score.value for function, score in pairs), parts=parts)


def score_in_worker(
    path: str, style: str, response: str, reference: object, columns: Mapping[str, object]
) -> Score:
    """The score of one row, computed in this process; what a worker process is asked for."""
    row = Row(response=response, reference=reference, columns=columns)
    return asyncio.run(score_row(_cached_functions(path, style), row))


@functools.cache
def _cached_functions(path: str, style: str) -> list[RewardFunction]:
    return load_functions(path, style)


def _imported(path: str) -> object:
    module_name, separator, attributes = path.partition(":")
    if not (separator and module_name and attributes):
        raise RewardError(f"a callable is named as 'module:function', got {path!r}")
    try:
        found: object = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        # Boundary to foreign code: importing a module may raise anything.
        raise RewardError(f"cannot import {path!r}: {type(error).__name__}: {error}") from error
    return found


def _rubric_members(found: object) -> list[tuple[str, Callable[..., object], float]] | None:
    """Functions and weights of an object that looks like a verifiers `Rubric`; None for all else."""
    # Boundary to a foreign class whose attributes have had two names over its versions.
    functions = getattr(found, "reward_funcs", getattr(found, "funcs", None))
    weights = getattr(found, "reward_weights", getattr(found, "weights", None))
    if not isinstance(functions, list) or not functions or inspect.isclass(found):
        return None
    known = (
        list(weights)
        if isinstance(weights, list) and len(weights) == len(functions)
        else [1.0] * len(functions)
    )
    parser = getattr(found, "parser", None)
    members = []
    for function, weight in zip(functions, known, strict=True):
        name = getattr(function, "__name__", type(function).__name__)
        if parser is not None and "parser" in inspect.signature(function).parameters:
            function = functools.partial(function, parser=parser)
        members.append((str(name), function, float(weight)))
    return members


def _reward_function(
    function: Callable[..., object], path: str, style: str, *, weight: float = 1.0, name: str = ""
) -> RewardFunction:
    parameters = parameters_of(function, path)
    chosen = detect_style(parameters, path) if style == "auto" else next(s for s in STYLES if s == style)
    return RewardFunction(
        path=path, function=function, parameters=parameters, style=chosen, weight=weight, name=name
    )
