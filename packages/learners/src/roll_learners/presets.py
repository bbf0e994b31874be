"""The algorithms that ship with the package, as fields of `Algorithm` that differ from its defaults.

The numbers are those of the papers that docs/algorithms.md names. None has a KL term, which costs a second
model: it is asked for with `kl=`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll_learners.correction import Correction
from roll_learners.critic_rule import CriticRule

_PER_SEQUENCE = {"aggregation": "seq_mean_token_mean"}

PRESET_FIELDS: Mapping[str, Mapping[str, Any]] = {
    # Groups of completions of one prompt.
    "grpo": _PER_SEQUENCE,
    "dr_grpo": {"advantage": "dr_grpo", "aggregation": "constant_divisor", "horizon": 1024},
    "dapo": {"clip_high": 0.28},
    "rloo": {"advantage": "rloo"},
    "opo": {"advantage": "opo"},
    "lite_ppo": {"advantage": "lite_ppo"},
    "gpg": {"advantage": "gpg", "policy_loss": "policy_gradient"},
    "maxrl": {"advantage": "maxrl"},
    "raft_pp": {"advantage": "raft_pp", **_PER_SEQUENCE},
    "reinforce_plus_plus_baseline": {"advantage": "dr_grpo", "whiten": True},
    # No group.
    "reinforce": {"advantage": "reinforce"},
    "reinforce_plus_plus": {"advantage": "reinforce", "whiten": True},
    "remax": {"advantage": "remax"},
    # Critics.
    "ppo": {"advantage": "gae", "whiten": True, "critic": CriticRule(value_clip=0.2)},
    "appo": {
        "advantage": "gae",
        "entropy_coef": 0.01,
        "critic": CriticRule(
            targets="monte_carlo", order="before", coef=1.0, agreement=0.2, disagreement=0.2
        ),
        **_PER_SEQUENCE,
    },
    # Other losses.
    "gspo": {"policy_loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, **_PER_SEQUENCE},
    "gmpo": {"policy_loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4, **_PER_SEQUENCE},
    "cispo": {"policy_loss": "cispo", "clip_low": 1.0, "clip_high": 4.0},
    "sapo": {
        "policy_loss": "sapo",
        "options": {"tau_positive": 1.0, "tau_negative": 1.05},
        **_PER_SEQUENCE,
    },
    "topr": {"advantage": "raw_reward", "policy_loss": "topr", **_PER_SEQUENCE},
    "kimi": {"advantage": "dr_grpo", "policy_loss": "kimi", "options": {"tau": 0.1}},
    # Engines whose probabilities differ from the learner's, or that are some versions behind.
    "tis": {"correction": Correction(weight="token", cap=2.0)},
    "sequence_tis": {"correction": Correction(weight="sequence", cap=2.0)},
    "mis": {"correction": Correction(weight="token", reject="token", low=0.5, high=2.0)},
    "sequence_mis": {"correction": Correction(weight="sequence", reject="sequence", low=0.5, high=2.0)},
    "icepop": {"correction": Correction(weight="token", reject="token", low=0.5, high=5.0)},
    "geometric_rejection": {"correction": Correction(reject="geometric", low=0.99, high=1.01)},
    "decoupled_ppo": {"correction": Correction(weight="token")},
    # Conversations with an environment.
    "gigpo": {"advantage": "gigpo", "gamma": 0.95, "options": {"omega": 1.0}, **_PER_SEQUENCE},
    "turn_reinforce": {"advantage": "turn_reinforce", "gamma": 0.95, "whiten": True},
    "step_reinforce": {"advantage": "step_reinforce", "gamma": 0.95},
    "ipa": {
        "advantage": "turn_reinforce",
        "policy_loss": "ipa_chunk",
        "gamma": 0.95,
        "options": {"mismatch_high": 2.0},
    },
    "arpo_hard": {"advantage": "arpo_hard"},
    # A teacher in place of rewards.
    "on_policy_distillation": {"advantage": "no_reward", "policy_loss": "importance_gradient"},
}
"""By name; `roll_learners.PRESETS` has the algorithms that they make."""
