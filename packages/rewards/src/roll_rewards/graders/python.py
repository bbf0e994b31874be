"""Grader `python`: a function of the user's own, named by its import path."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.scores import REAL_TYPES, Score
from roll_rewards.threads import call_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCallable:
    """What a user's function says, sync (then run in a thread) or async.

    The function is called with those of `response`, `reference` and the row's columns that it
    declares as parameters, by name; with all of them if it has `**columns`. It returns a number, a
    bool, a `Score`, or a mapping with `score` (its other numbers become parts, and a text under
    `parsed` the parsed answer).

    Example: `PythonCallable(callable="my_rewards:brevity")` for

        def brevity(response: str, target_length: int) -> float: ...

    Attributes:
        callable: `module:function`; the function may be nested as `module:Class.method`.

    Raises:
        RewardError: The function cannot be imported or cannot be called this way; when grading, a
            column that it requires is missing or its answer is none of the above.
    """

    callable: str

    def __post_init__(self) -> None:
        _declared_parameters(load_callable(self.callable), self.callable)

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The function's verdict as a score. See `Grader.grade`."""
        function = load_callable(self.callable)
        parameters = _declared_parameters(function, self.callable)
        offered = {**columns, "response": response, "reference": reference}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            offered = {p.name: offered[p.name] for p in parameters if p.name in offered}
        missing = [p.name for p in parameters if _is_required(p) and p.name not in offered]
        if missing:
            raise RewardError(
                f"{self.callable} requires {', '.join(missing)}, but the row has only the columns "
                f"{', '.join(sorted(columns)) or '(none)'} besides response and reference"
            )
        if inspect.iscoroutinefunction(function):
            answer = await function(**offered)
        else:
            answer = await call_in_thread(lambda: function(**offered), name=f"grader {self.callable}")
            if inspect.isawaitable(answer):
                answer = await answer
        return _as_score(answer, self.callable)


def load_callable(path: str) -> Callable[..., object]:
    """The callable that an import path names.

    Args:
        path: `module:name` or `module:Class.name`.

    Raises:
        RewardError: The path has another form, the import fails, or what it names is not callable.
    """
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
    if not callable(found):
        raise RewardError(f"{path!r} is a {type(found).__name__}, which cannot be called")
    return found


def _declared_parameters(function: Callable[..., object], path: str) -> list[inspect.Parameter]:
    """The parameters that can be given by name; one of them takes the response.

    Raises:
        RewardError: There is no signature, a parameter is positional-only, or none takes the response.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RewardError(f"cannot read the parameters of {path!r}: {error}") from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise RewardError(
                f"{path} is called by name, but its parameter {parameter.name!r} is positional-only"
            )
    if not any(p.name == "response" or p.kind is p.VAR_KEYWORD for p in parameters):
        names = ", ".join(p.name for p in parameters) or "(none)"
        raise RewardError(f"{path} must take a parameter named 'response', it has {names}")
    return parameters


def _is_required(parameter: inspect.Parameter) -> bool:
    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return named and parameter.default is parameter.empty


def _as_score(answer: object, path: str) -> Score:
    if isinstance(answer, Score):
        return answer
    if isinstance(answer, REAL_TYPES):
        return Score(value=float(answer))
    if isinstance(answer, Mapping) and isinstance(answer.get("score"), REAL_TYPES):
        parts = {str(k): float(v) for k, v in answer.items() if k != "score" and isinstance(v, REAL_TYPES)}
        parsed = answer["parsed"] if isinstance(answer.get("parsed"), str) else None
        return Score(value=float(answer["score"]), parts=parts, parsed=parsed)
    raise RewardError(
        f"{path} must return a number, a bool, a Score or a mapping with a number under 'score', "
        f"got {type(answer).__name__} {answer!r:.80}"
    )
