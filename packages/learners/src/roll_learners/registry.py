"""The parts an algorithm names: advantages, policy losses, aggregations and KL estimators.

`algorithm.py` checks names here without importing torch; `objective.py` and `steps/policy.py` bind
them to functions. A part is a pure function. Its positional parameters are inputs that the step
supplies by name, its keyword-only parameters are hyper-parameters taken from the algorithm.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from roll_learners.errors import LearnerError, unknown_name

Trait = Literal["compares_group_members", "vanishes_at_zero_advantage"]
Function = TypeVar("Function", bound=Callable[..., Any])

PARAMETERS = frozenset({"clip_low", "clip_high", "dual_clip", "eps", "gamma", "horizon"})
"""Hyper-parameters that are fields of `Algorithm`; any other is one of `Algorithm.options`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is known of a registered function before it is imported.

    Attributes:
        target: The function, or "module:function" for one that is imported at first use.
        parameters: Its hyper-parameters: name to whether it is required.
        traits: Facts about it that a step may rely on.
    """

    target: str | Callable[..., Any]
    parameters: Mapping[str, bool]
    traits: frozenset[Trait] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A function with its hyper-parameters filled in, called with inputs by name."""

    kind: str
    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    parameters: Mapping[str, object]

    def __call__(self, **available: object) -> Any:
        """The function's value; inputs it does not name are left out.

        Raises:
            LearnerError: An input that it names is absent.
        """
        missing = [name for name in self.inputs if available.get(name) is None]
        if missing:
            raise LearnerError(
                f"{self.kind} {self.name!r} needs {', '.join(missing)}, which this batch lacks"
            )
        return self.function(**{name: available[name] for name in self.inputs}, **self.parameters)


class Registry:
    """Functions of one kind by name, the built-in ones imported at first use."""

    def __init__(self, kind: str, inputs: tuple[str, ...], builtin: Mapping[str, Part]) -> None:
        """Args:
        kind: The noun for messages, such as "policy loss".
        inputs: Names of positional parameters that a function may have.
        builtin: The parts that ship with this package.
        """
        self.kind = kind
        self.inputs = inputs
        self._parts = dict(builtin)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._parts))

    def part(self, name: str) -> Part:
        """What is known of `name`, without importing it.

        Raises:
            LearnerError: The name is unknown; the message names the nearest.
        """
        if name not in self._parts:
            raise unknown_name(self.kind, name, self._parts)
        return self._parts[name]

    def register(self, name: str, *traits: Trait) -> Callable[[Function], Function]:
        """A decorator that makes a function usable by `name` in an algorithm.

        Args:
            name: The new name.
            *traits: What a step may rely on; none is the safe choice.

        Raises:
            LearnerError: The name is taken, or a positional parameter is not an input of this kind.
        """

        def add(function: Function) -> Function:
            if name in self._parts:
                raise LearnerError(f"{self.kind} {name!r} is already registered")
            unknown = set(_positional(function)) - set(self.inputs)
            if unknown:
                raise LearnerError(
                    f"{self.kind} {name!r} asks for {', '.join(sorted(unknown))}: inputs are "
                    f"{', '.join(self.inputs)}; a hyper-parameter must be keyword-only"
                )
            self._parts[name] = Part(
                target=function, parameters=_keywords(function), traits=frozenset(traits)
            )
            return function

        return add

    def bind(self, name: str, parameters: Mapping[str, object]) -> Bound:
        """The function with those `parameters` that it takes filled in.

        Raises:
            LearnerError: The name is unknown.
        """
        target = self.part(name).target
        function = _load(target) if isinstance(target, str) else target
        taken = {key: parameters[key] for key in _keywords(function) if key in parameters}
        return Bound(
            kind=self.kind, name=name, function=function, inputs=_positional(function), parameters=taken
        )


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY)


def _keywords(function: Callable[..., Any]) -> dict[str, bool]:
    parameters = inspect.signature(function).parameters.values()
    only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return {p.name: p.default is inspect.Parameter.empty for p in only}


def _builtin(target: str, *parameters: str, traits: tuple[Trait, ...] = ()) -> Part:
    needed = {name: name not in ("dual_clip", "eps", "gamma", "ddof") for name in parameters}
    return Part(target=f"roll_learners.{target}", parameters=needed, traits=frozenset(traits))


_COMPARES: tuple[Trait, ...] = ("compares_group_members",)
_VANISHES: tuple[Trait, ...] = ("vanishes_at_zero_advantage",)

ADVANTAGES = Registry(
    "advantage",
    ("rewards", "groups", "token_rewards", "segments"),
    {
        "grpo": _builtin("advantages.group:grpo", "eps", "ddof", traits=_COMPARES),
        "dr_grpo": _builtin("advantages.group:dr_grpo", traits=_COMPARES),
        "rloo": _builtin("advantages.group:rloo", traits=_COMPARES),
        "lite_ppo": _builtin("advantages.group:lite_ppo", "eps", "ddof", traits=_COMPARES),
        "reinforce": _builtin("advantages.returns:reinforce", "gamma"),
    },
)
POLICY_LOSSES = Registry(
    "policy loss",
    ("logprobs", "old_logprobs", "advantages", "segments", "behavior_logprobs"),
    {
        "clipped_surrogate": _builtin(
            "losses.policy:clipped_surrogate", "clip_low", "clip_high", "dual_clip", traits=_VANISHES
        ),
        "gspo": _builtin("losses.policy:gspo", "clip_low", "clip_high", traits=_VANISHES),
        "cispo": _builtin("losses.policy:cispo", "clip_low", "clip_high", traits=_VANISHES),
    },
)
AGGREGATIONS = Registry(
    "aggregation",
    ("losses", "segments", "totals"),
    {
        "token_mean": _builtin("aggregation:token_mean"),
        "seq_mean_token_mean": _builtin("aggregation:seq_mean_token_mean"),
        "seq_mean_token_sum": _builtin("aggregation:seq_mean_token_sum"),
        "constant_divisor": _builtin("aggregation:constant_divisor", "horizon"),
    },
)
KL_ESTIMATORS = Registry(
    "KL estimator",
    ("logprobs", "ref_logprobs"),
    {name: _builtin(f"losses.kl:{name}") for name in ("k1", "k2", "k3")},
)
