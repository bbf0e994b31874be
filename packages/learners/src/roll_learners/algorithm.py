"""An algorithm as data: which advantage, which loss, how it is summed, where KL goes.

Torch-free, so that `roll_launch` checks a configuration before anything heavy is imported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from roll_learners.correction import Correction
from roll_learners.critic_rule import CriticRule
from roll_learners.errors import LearnerError, unknown_name
from roll_learners.kl_penalty import KlPenalty
from roll_learners.presets import PRESET_FIELDS
from roll_learners.registry import ADVANTAGES, AGGREGATIONS, PARAMETERS, POLICY_LOSSES, Part
from roll_learners.rhythm import Rhythm

__all__ = ["PRESETS", "Algorithm", "KlPenalty", "make_algorithm", "register_preset"]

Need = Literal["critic", "turn_states", "greedy_baseline", "teacher", "attention"]

_NEEDS: Mapping[str, Need] = {
    "uses_values": "critic",
    "uses_states": "turn_states",
    "uses_baselines": "greedy_baseline",
    "uses_no_reward": "teacher",
}

RULES: Mapping[str, type] = {
    "kl": KlPenalty,
    "correction": Correction,
    "critic": CriticRule,
    "rhythm": Rhythm,
}
"""Fields of `Algorithm` that are records; `make_algorithm` takes mappings for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What one policy-gradient step computes; `make_algorithm("dapo", clip_high=0.3)` makes one.

    Attributes:
        name: Shown in logs.
        advantage: A name in `ADVANTAGES`.
        policy_loss: A name in `POLICY_LOSSES`.
        aggregation: A name in `AGGREGATIONS`.
        clip_low: The ratio is clipped below at 1 - clip_low; 1 switches that bound off.
        clip_high: The ratio is clipped above at 1 + clip_high.
        dual_clip: For a negative advantage A the token loss is at most dual_clip * |A|; above 1, or None.
        kl: Penalty for distance from the reference policy.
        entropy_coef: Weight of the entropy bonus.
        correction: For an engine that samples from other probabilities than the learner computes.
        critic: How critics learn, for the advantage "gae".
        rhythm: Weights of tokens by attention, or None.
        reward_clip: Rewards are held inside plus and minus this, before any statistic; above 0, or None.
        advantage_eps: Added to the standard deviation that divides an advantage.
        whiten: Advantages are shifted and scaled to mean 0, deviation 1 over all tokens of the batch.
        advantage_clip: Advantages are then held inside plus and minus this; above 0, or None.
        gamma: Discount: per token of "reinforce" and "gae", per turn of estimators that know turns.
        lam: Weight of longer sums in "gae", 0 to 1.
        horizon: The tokens that "constant_divisor" divides by, usually the response limit.
        mask_truncated: Samples cut at their token limit leave group statistics and the loss.
        min_group_reward: Groups whose mean reward is not above this leave the loss; None for no bound.
        max_group_reward: Groups whose mean reward is not below this leave the loss; None for no bound.
        max_error_tokens: Longer responses whose reward is not above 0 leave the loss, though not the
            statistics of their group; None for no limit.
        options: Hyper-parameters of registered functions that are none of the above.
    """

    name: str = "custom"
    advantage: str = "grpo"
    policy_loss: str = "clipped_surrogate"
    aggregation: str = "token_mean"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl: KlPenalty = field(default_factory=KlPenalty)
    entropy_coef: float = 0.0
    correction: Correction = field(default_factory=Correction)
    critic: CriticRule = field(default_factory=CriticRule)
    rhythm: Rhythm | None = None
    reward_clip: float | None = None
    advantage_eps: float = 1e-6
    whiten: bool = False
    advantage_clip: float | None = None
    gamma: float = 1.0
    lam: float = 0.95
    horizon: int | None = None
    mask_truncated: bool = False
    min_group_reward: float | None = None
    max_group_reward: float | None = None
    max_error_tokens: int | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range("clip_low", self.clip_low, 0.0, 1.0)
        _check_range("clip_high", self.clip_high, 0.0)
        _check_above("dual_clip", self.dual_clip, 1.0)
        _check_above("reward_clip", self.reward_clip, 0.0)
        _check_above("advantage_clip", self.advantage_clip, 0.0)
        _check_range("entropy_coef", self.entropy_coef, 0.0)
        _check_range("advantage_eps", self.advantage_eps, 0.0)
        _check_range("gamma", self.gamma, 0.0, 1.0)
        _check_range("lam", self.lam, 0.0, 1.0)
        for name, tokens in (("horizon", self.horizon), ("max_error_tokens", self.max_error_tokens)):
            if tokens is not None and tokens < 1:
                raise LearnerError(f"algorithm.{name} is {tokens}: at least 1 token is needed")
        low, high = self.min_group_reward, self.max_group_reward
        if low is not None and high is not None and not low < high:
            raise LearnerError(f"algorithm.min_group_reward {low} is not below max_group_reward {high}")
        self._check_options()
        if self.critic != CriticRule() and not self.needs_critic:
            raise LearnerError(
                f"algorithm.critic is {self.critic}, but advantage {self.advantage!r} uses none: leave it out"
            )

    @property
    def needs_group_baseline(self) -> bool:
        """True if the advantage compares completions of one prompt, so that group_size 1 learns nothing."""
        return "compares_group_members" in ADVANTAGES.part(self.advantage).traits

    @property
    def needs_reference(self) -> bool:
        """True if the step needs log-probs of a reference policy."""
        return self.kl.placement != "none"

    @property
    def needs_critic(self) -> bool:
        """True if the advantage is made from the values of one critic or several."""
        return "uses_values" in ADVANTAGES.part(self.advantage).traits

    @property
    def needs(self) -> frozenset[Need]:
        """What the algorithm cannot do without, of what many pipelines have not."""
        traits = ADVANTAGES.part(self.advantage).traits
        needs = {need for trait, need in _NEEDS.items() if trait in traits}
        return frozenset(needs | ({"attention"} if self.rhythm is not None else set()))

    @property
    def needs_behavior(self) -> bool:
        """True if the loss needs the engine's log-probs of every sample."""
        return self.correction.corrects or "uses_behavior" in POLICY_LOSSES.part(self.policy_loss).traits

    @property
    def needs_turns(self) -> bool:
        """True if the loss looks at turns."""
        return self.correction.needs_turns or "uses_turns" in POLICY_LOSSES.part(self.policy_loss).traits

    @property
    def zero_advantage_is_inert(self) -> bool:
        """True if a sample whose advantages are all 0 adds exactly 0 to loss and gradient."""
        vanishes = "vanishes_at_zero_advantage" in POLICY_LOSSES.part(self.policy_loss).traits
        return vanishes and self.kl.placement != "loss" and not self.entropy_coef

    def parameters(self) -> dict[str, object]:
        """Hyper-parameters by the names that registered functions use for them."""
        fields: dict[str, object] = {
            "clip_low": self.clip_low,
            "clip_high": self.clip_high,
            "dual_clip": self.dual_clip,
            "eps": self.advantage_eps,
            "gamma": self.gamma,
            "lam": self.lam,
            "horizon": self.horizon,
        }
        return fields | dict(self.options)

    def _check_options(self) -> None:
        known = {key: needed for part in self._parts() for key, needed in part.parameters.items()}
        chosen = f"{self.advantage!r}, {self.policy_loss!r} and {self.aggregation!r}"
        for key in self.options:
            if key in PARAMETERS or key not in known:
                raise unknown_name(
                    f"option of {chosen}", key, [k for k in known if k not in PARAMETERS] or ["none"]
                )
        given = {key for key, value in self.parameters().items() if value is not None}
        missing = sorted(key for key, needed in known.items() if needed and key not in given)
        if missing:
            raise LearnerError(f"algorithm {self.name!r} lacks {', '.join(missing)}, which {chosen} need")
        for key, value, unused in (
            ("dual_clip", self.dual_clip, None),
            ("horizon", self.horizon, None),
            ("gamma", self.gamma, 1.0),
            ("lam", self.lam, 0.95),
        ):
            if value != unused and key not in known:
                raise LearnerError(f"algorithm.{key} is {value}, but none of {chosen} uses it: leave it out")

    def _parts(self) -> tuple[Part, Part, Part]:
        return (
            ADVANTAGES.part(self.advantage),
            POLICY_LOSSES.part(self.policy_loss),
            AGGREGATIONS.part(self.aggregation),
        )


def make_algorithm(preset: str, **overrides: Any) -> Algorithm:
    """The preset of that name with fields replaced; records may be mappings of their fields.

    Args:
        preset: A name in `PRESETS`.
        **overrides: Fields of `Algorithm`.

    Raises:
        LearnerError: An unknown preset, field or name (the nearest is named), or a value out of range.
    """
    if preset not in _presets:
        raise unknown_name("algorithm preset", preset, _presets)
    allowed = {f.name for f in dataclasses.fields(Algorithm)}
    for key in overrides:
        if key not in allowed:
            raise unknown_name("algorithm field", key, allowed)
    for key, rule in RULES.items():
        value = overrides.get(key)
        if isinstance(value, Mapping):
            overrides[key] = _record(rule, key, value)
    return dataclasses.replace(_presets[preset], **overrides)


def register_preset(algorithm: Algorithm) -> Algorithm:
    """Makes `algorithm` available as a preset under its own name, and returns it.

    Raises:
        LearnerError: The name is taken.
    """
    if algorithm.name in _presets:
        raise LearnerError(f"algorithm preset {algorithm.name!r} is already registered")
    _presets[algorithm.name] = algorithm
    return algorithm


def _record(rule: type, key: str, fields: Mapping[str, Any]) -> object:
    allowed = {f.name for f in dataclasses.fields(rule)}
    for name in fields:
        if name not in allowed:
            raise unknown_name(f"field of algorithm.{key}", name, allowed)
    return rule(**fields)


def _check_above(name: str, value: float | None, bound: float) -> None:
    if value is not None and not bound < value < math.inf:
        raise LearnerError(f"algorithm.{name} is {value}: allowed are numbers above {bound:g}, or null")


def _check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        bound = f"{low} to {high}" if math.isfinite(high) else f"at least {low}"
        raise LearnerError(f"algorithm.{name} is {value}: allowed is {bound}")


_presets: dict[str, Algorithm] = {
    name: Algorithm(name=name, **fields) for name, fields in PRESET_FIELDS.items()
}
PRESETS: Mapping[str, Algorithm] = MappingProxyType(_presets)
"""Algorithms by name, read-only; `register_preset` adds to it."""
