"""Graders by name, made from checked options. Called by whoever turns configuration into objects."""

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.graders import (
    Cached,
    Choice,
    Code,
    CosineLength,
    Detection,
    Exact,
    IfBench,
    IfEval,
    JsonAnswer,
    Judge,
    Language,
    Layout,
    Length,
    Math,
    Number,
    Pattern,
    ProcessReward,
    PythonCallable,
    ReasoningGym,
    Remote,
    Repetition,
    RewardModel,
    Routed,
    TextMatch,
    VideoQuestion,
    Weighted,
)

GRADERS: Mapping[str, type[Grader]] = types.MappingProxyType(
    {
        "cached": Cached,
        "choice": Choice,
        "code": Code,
        "cosine_length": CosineLength,
        "detection": Detection,
        "exact": Exact,
        "ifbench": IfBench,
        "ifeval": IfEval,
        "json": JsonAnswer,
        "judge": Judge,
        "language": Language,
        "layout": Layout,
        "length": Length,
        "math": Math,
        "number": Number,
        "pattern": Pattern,
        "process": ProcessReward,
        "python": PythonCallable,
        "reasoning_gym": ReasoningGym,
        "remote": Remote,
        "repetition": Repetition,
        "reward_model": RewardModel,
        "routed": Routed,
        "text_match": TextMatch,
        "video_question": VideoQuestion,
        "weighted": Weighted,
    }
)


def make_grader(name: str, **options: object) -> Grader:
    """A grader by its name in `GRADERS`; its options are the fields of its class.

    Args:
        name: For example `exact`.
        **options: For example `after=";"`; an option not given keeps its default.

    Raises:
        RewardError: No such grader or option (names the nearest and all allowed), a required option
            is missing, or an option has a wrong type or value.
    """
    if name not in GRADERS:
        raise RewardError(f"no grader {name!r}{_nearest(name, GRADERS)}; there are {_listed(GRADERS)}")
    kind = GRADERS[name]
    # Every class in the table is a dataclass; the protocol cannot say so.
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for option, value in options.items():
        if option not in fields:
            hint = _nearest(option, fields)
            raise RewardError(f"grader {name!r} has no option {option!r}{hint}; it has {_listed(fields)}")
        if not _fits(value, hints[option]):
            raise RewardError(
                f"option {option!r} of grader {name!r} must be {_spelled(hints[option])}, "
                f"got {type(value).__name__} {value!r:.80}"
            )
    for option, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and option not in options:
            raise RewardError(f"grader {name!r} needs the option {option!r}, {_spelled(hints[option])}")
    return kind(**options)


def _fits(value: object, hint: typing.Any) -> bool:
    """Whether a value has the annotated type; a bool is no number here, an int is a float.

    A list passes where a tuple is asked for, because YAML and JSON know only lists.
    """
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if hint in (object, typing.Any):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, member) for member in members)
    if origin is typing.Literal:
        return any(type(value) is type(member) and value == member for member in members)
    if origin is tuple:
        return isinstance(value, list | tuple) and _elements_fit(value, members)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, members[0]) and _fits(item, members[1]) for key, item in value.items()
        )
    if isinstance(value, bool):
        return hint is bool
    if hint is Grader:
        # Graders of third parties fit by their method alone.
        return callable(getattr(value, "grade", None))
    return isinstance(value, (int, float) if hint is float else origin or hint)


def _elements_fit(values: "list[object] | tuple[object, ...]", members: tuple[typing.Any, ...]) -> bool:
    if len(members) == 2 and members[1] is ...:
        return all(_fits(value, members[0]) for value in values)
    return len(values) == len(members) and all(map(_fits, values, members))


def _spelled(hint: typing.Any) -> str:
    """An annotation in words: `str or None`, `'search' or 'full'`, `a list of str`."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(repr(member) for member in members)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spelled(member) for member in members)
    if origin is tuple and members[-1] is ...:
        return f"a list of {_spelled(members[0])}"
    if origin is tuple:
        return f"a list of {len(members)}: {', '.join(map(_spelled, members))}"
    if origin is collections.abc.Callable:
        return "a function"
    if origin is not None:
        return f"a mapping of {_spelled(members[0])} to {_spelled(members[1])}"
    return "None" if hint is type(None) else str(hint.__name__)


def _nearest(name: str, allowed: Iterable[str]) -> str:
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
