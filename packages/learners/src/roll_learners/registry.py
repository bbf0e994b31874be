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

Trait = Literal[
    "compares_group_members",
    "vanishes_at_zero_advantage",
    "uses_values",
    "uses_behavior",
    "uses_turns",
    "uses_logits",
    "uses_states",
    "uses_baselines",
    "uses_no_reward",
    "in_loss_only",
]
Function = TypeVar("Function", bound=Callable[..., Any])

PARAMETERS = frozenset({"clip_low", "clip_high", "dual_clip", "eps", "gamma", "lam", "horizon"})
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
    """A function with its hyper-parameters filled in, called with inputs by name.

    Attributes:
        kind: The noun for messages.
        name: Its name in the registry.
        function: The function.
        inputs: Its inputs: name to whether it is required; one with a default may be absent.
        parameters: Hyper-parameters that are filled in.
    """

    kind: str
    name: str
    function: Callable[..., Any]
    inputs: Mapping[str, bool]
    parameters: Mapping[str, object]

    def __call__(self, **available: object) -> Any:
        """The function's value; inputs it does not name are left out.

        Raises:
            LearnerError: An input that it needs is absent.
        """
        missing = [name for name, needed in self.inputs.items() if needed and available.get(name) is None]
        if missing:
            raise LearnerError(
                f"{self.kind} {self.name!r} needs {', '.join(missing)}, which this batch lacks"
            )
        return self.function(**{name: available.get(name) for name in self.inputs}, **self.parameters)


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


def _positional(function: Callable[..., Any]) -> dict[str, bool]:
    parameters = inspect.signature(function).parameters.values()
    inputs = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return {p.name: p.default is inspect.Parameter.empty for p in inputs}


def _keywords(function: Callable[..., Any]) -> dict[str, bool]:
    parameters = inspect.signature(function).parameters.values()
    only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return {p.name: p.default is inspect.Parameter.empty for p in only}


def _builtin(target: str, *needed: str, optional: str = "", traits: tuple[Trait, ...] = ()) -> Part:
    """A part of this package: its required hyper-parameters, and those that have a default."""
    parameters = dict.fromkeys(needed, True) | dict.fromkeys(optional.split(), False)
    return Part(target=f"roll_learners.{target}", parameters=parameters, traits=frozenset(traits))


_COMPARES: tuple[Trait, ...] = ("compares_group_members",)
_VANISHES: tuple[Trait, ...] = ("vanishes_at_zero_advantage",)
_CLIPS = ("clip_low", "clip_high")

ADVANTAGES = Registry(
    "advantage",
    (
        "rewards",
        "groups",
        "token_rewards",
        "segments",
        "values",
        "last_values",
        "turns",
        "turn_rewards",
        "turn_states",
        "nodes",
        "baselines",
    ),
    {
        "grpo": _builtin("advantages.group:grpo", optional="eps ddof", traits=_COMPARES),
        "dr_grpo": _builtin("advantages.group:dr_grpo", traits=_COMPARES),
        "rloo": _builtin("advantages.group:rloo", traits=_COMPARES),
        "gpg": _builtin("advantages.group:gpg", traits=_COMPARES),
        "opo": _builtin("advantages.group:opo", traits=_COMPARES),
        "lite_ppo": _builtin("advantages.group:lite_ppo", optional="eps ddof", traits=_COMPARES),
        "batch_normalised": _builtin("advantages.group:batch_normalised", optional="eps ddof"),
        "maxrl": _builtin("advantages.success:maxrl", traits=_COMPARES),
        "raft_pp": _builtin("advantages.success:raft_pp"),
        "remax": _builtin("advantages.baseline:remax", traits=("uses_baselines",)),
        "raw_reward": _builtin("advantages.baseline:raw_reward"),
        "no_reward": _builtin("advantages.baseline:no_reward", traits=("uses_no_reward",)),
        "reinforce": _builtin("advantages.returns:reinforce", optional="gamma"),
        "gae": _builtin("advantages.gae:gae", "gamma", "lam", traits=("uses_values",)),
        "turn_reinforce": _builtin("advantages.turns:turn_reinforce", optional="gamma"),
        "step_reinforce": _builtin(
            "advantages.turns:step_reinforce", optional="gamma eps ddof", traits=_COMPARES
        ),
        "gigpo": _builtin(
            "advantages.turns:gigpo",
            optional="gamma omega eps ddof by_deviation",
            traits=(*_COMPARES, "uses_states"),
        ),
        "arpo_hard": _builtin("advantages.shared_prefix:arpo_hard", optional="eps ddof", traits=_COMPARES),
    },
)
POLICY_LOSSES = Registry(
    "policy loss",
    ("logprobs", "old_logprobs", "advantages", "segments", "behavior_logprobs", "turns", "expert"),
    {
        "clipped_surrogate": _builtin(
            "losses.policy:clipped_surrogate", *_CLIPS, optional="dual_clip", traits=_VANISHES
        ),
        "gspo": _builtin("losses.policy:gspo", *_CLIPS, traits=_VANISHES),
        "turn_surrogate": _builtin(
            "losses.policy:turn_surrogate", *_CLIPS, optional="dual_clip", traits=(*_VANISHES, "uses_turns")
        ),
        "cispo": _builtin("losses.policy:cispo", *_CLIPS, traits=_VANISHES),
        "gmpo": _builtin("losses.gates:gmpo", *_CLIPS, traits=_VANISHES),
        "sapo": _builtin("losses.gates:sapo", "tau_positive", "tau_negative", traits=_VANISHES),
        "policy_gradient": _builtin("losses.gradient:policy_gradient", traits=_VANISHES),
        "importance_gradient": _builtin("losses.gradient:importance_gradient", traits=_VANISHES),
        "truncated_gradient": _builtin(
            "losses.gradient:truncated_gradient", optional="weight_high", traits=_VANISHES
        ),
        "topr": _builtin("losses.gradient:topr", optional="weight_high", traits=_VANISHES),
        "topr_token": _builtin("losses.gradient:topr_token", optional="weight_high", traits=_VANISHES),
        "kimi": _builtin("losses.gradient:kimi", "tau"),
        "ipa_chunk": _builtin(
            "losses.chunk:ipa_chunk",
            "mismatch_high",
            optional="imitation_coef rl_coef",
            traits=(*_VANISHES, "uses_turns", "uses_behavior"),
        ),
        "ipa_trajectory": _builtin(
            "losses.chunk:ipa_trajectory", "mismatch_high", traits=(*_VANISHES, "uses_behavior")
        ),
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
    ("logprobs", "ref_logprobs", "old_logprobs", "logits", "ref_logits"),
    {
        "k1": _builtin("losses.kl:k1"),
        "k2": _builtin("losses.kl:k2"),
        "k3": _builtin("losses.kl:k3"),
        "k3_importance": _builtin("losses.kl:k3_importance", traits=("in_loss_only",)),
        "full": _builtin("losses.kl:full_kl", traits=("in_loss_only", "uses_logits")),
    },
)
DIVERGENCES = Registry(
    "divergence",
    ("student", "teacher"),
    {
        "forward_kl": _builtin("losses.divergence:forward_kl"),
        "reverse_kl": _builtin("losses.divergence:reverse_kl"),
        "generalised_js": _builtin("losses.divergence:generalised_js", optional="beta"),
        "skewed_forward_kl": _builtin("losses.divergence:skewed_forward_kl", optional="skew"),
        "skewed_reverse_kl": _builtin("losses.divergence:skewed_reverse_kl", optional="skew"),
        "adaptive_kl": _builtin("losses.divergence:adaptive_kl", optional="head_mass"),
    },
)
PREFERENCE_LOSSES = Registry(
    "preference loss",
    ("logits", "chosen", "rejected"),
    {
        "dpo": _builtin("losses.preference:dpo", "beta", optional="label_smoothing"),
        "robust_dpo": _builtin("losses.preference:robust_dpo", "beta", "label_smoothing"),
        "hinge": _builtin("losses.preference:hinge", "beta"),
        "ipo": _builtin("losses.preference:ipo", "beta"),
        "simpo": _builtin("losses.preference:simpo", "beta", "gamma"),
        "orpo": _builtin("losses.preference:orpo", "coef"),
    },
)
