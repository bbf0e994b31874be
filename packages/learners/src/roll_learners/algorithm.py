"""An algorithm as data: which advantage, which loss, how it is summed, where KL goes.

Torch-free, so that `roll_launch` checks a configuration before anything heavy is imported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from roll_learners.errors import LearnerError, unknown_name
from roll_learners.registry import ADVANTAGES, AGGREGATIONS, KL_ESTIMATORS, PARAMETERS, POLICY_LOSSES

KlPlacement = Literal["none", "reward", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """A penalty for distance from a reference policy, such as
    `KlPenalty(placement="loss", estimator="k3", coef=0.001)`.

    Attributes:
        placement: "none"; "reward" subtracts it from each token's reward; "loss" adds it to the loss.
        estimator: A name in `KL_ESTIMATORS`: "k1" is usual in the reward, "k2" and "k3" in the loss.
        coef: Its weight, at least 0.
    """

    placement: KlPlacement = "none"
    estimator: str = "k3"
    coef: float = 0.0

    def __post_init__(self) -> None:
        if self.placement not in get_args(KlPlacement):
            raise unknown_name("KL placement", self.placement, get_args(KlPlacement))
        KL_ESTIMATORS.part(self.estimator)
        _check_range("kl.coef", self.coef, 0.0)
        if self.placement == "none" and self.coef:
            raise LearnerError(f"kl.coef is {self.coef} but kl.placement is 'none': choose reward or loss")
        if self.placement != "none" and not self.coef:
            raise LearnerError(
                f"kl.placement is {self.placement!r} but kl.coef is 0: a weight above 0 is needed"
            )


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
        advantage_eps: Added to the standard deviation that divides an advantage.
        whiten: Advantages are shifted and scaled to mean 0, deviation 1 over all tokens of the batch.
        gamma: Discount per token of the advantage "reinforce".
        horizon: The tokens that "constant_divisor" divides by, usually the response limit.
        mask_truncated: Samples cut at their token limit leave group statistics and the loss.
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
    advantage_eps: float = 1e-6
    whiten: bool = False
    gamma: float = 1.0
    horizon: int | None = None
    mask_truncated: bool = False
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range("clip_low", self.clip_low, 0.0, 1.0)
        _check_range("clip_high", self.clip_high, 0.0)
        if self.dual_clip is not None and not 1.0 < self.dual_clip < math.inf:
            raise LearnerError(
                f"algorithm.dual_clip is {self.dual_clip}: allowed are numbers above 1, or null"
            )
        _check_range("entropy_coef", self.entropy_coef, 0.0)
        _check_range("advantage_eps", self.advantage_eps, 0.0)
        _check_range("gamma", self.gamma, 0.0, 1.0)
        if self.horizon is not None and self.horizon < 1:
            raise LearnerError(f"algorithm.horizon is {self.horizon}: at least 1 token is needed")
        self._check_options()

    @property
    def needs_group_baseline(self) -> bool:
        """True if the advantage compares completions of one prompt, so that group_size 1 learns nothing."""
        return "compares_group_members" in ADVANTAGES.part(self.advantage).traits

    @property
    def needs_reference(self) -> bool:
        """True if the step needs log-probs of a reference policy."""
        return self.kl.placement != "none"

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
            "horizon": self.horizon,
        }
        return fields | dict(self.options)

    def _check_options(self) -> None:
        parts = (
            ADVANTAGES.part(self.advantage),
            POLICY_LOSSES.part(self.policy_loss),
            AGGREGATIONS.part(self.aggregation),
        )
        known = {key: needed for part in parts for key, needed in part.parameters.items()}
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
        ):
            if value != unused and key not in known:
                raise LearnerError(f"algorithm.{key} is {value}, but none of {chosen} uses it: leave it out")


def make_algorithm(preset: str, **overrides: Any) -> Algorithm:
    """The preset of that name with fields replaced; `kl` may be a mapping of its fields.

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
    kl = overrides.get("kl")
    if isinstance(kl, Mapping):
        overrides["kl"] = _kl_from(kl)
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


def _kl_from(fields: Mapping[str, Any]) -> KlPenalty:
    allowed = {f.name for f in dataclasses.fields(KlPenalty)}
    for key in fields:
        if key not in allowed:
            raise unknown_name("field of algorithm.kl", key, allowed)
    return KlPenalty(**fields)


def _check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        bound = f"{low} to {high}" if math.isfinite(high) else f"at least {low}"
        raise LearnerError(f"algorithm.{name} is {value}: allowed is {bound}")


# The numbers are those of the papers named in README.md. None has a KL term, which costs a second
# model: it is asked for with `kl=`.
_presets: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(name="grpo", aggregation="seq_mean_token_mean"),
        Algorithm(name="dr_grpo", advantage="dr_grpo", aggregation="constant_divisor", horizon=1024),
        Algorithm(name="dapo", clip_high=0.28),
        Algorithm(name="rloo", advantage="rloo"),
        Algorithm(name="reinforce", advantage="reinforce"),
        Algorithm(name="reinforce_plus_plus_baseline", advantage="dr_grpo", whiten=True),
        Algorithm(name="lite_ppo", advantage="lite_ppo"),
        Algorithm(
            name="gspo", policy_loss="gspo", aggregation="seq_mean_token_mean", clip_low=3e-4, clip_high=4e-4
        ),
        Algorithm(name="cispo", policy_loss="cispo", clip_low=1.0, clip_high=4.0),
    )
}
PRESETS: Mapping[str, Algorithm] = MappingProxyType(_presets)
"""Algorithms by name, read-only; `register_preset` adds to it."""
