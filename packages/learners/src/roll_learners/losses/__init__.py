"""Token losses: flat log-probs in, one number a token out; `aggregation` sums them."""

from roll_learners.losses.chunk import ipa_chunk, ipa_trajectory
from roll_learners.losses.divergence import (
    adaptive_kl,
    forward_kl,
    generalised_js,
    reverse_kl,
    skewed_forward_kl,
    skewed_reverse_kl,
)
from roll_learners.losses.entropy import entropy
from roll_learners.losses.gates import gmpo, sapo
from roll_learners.losses.gradient import (
    importance_gradient,
    kimi,
    policy_gradient,
    topr,
    topr_token,
    truncated_gradient,
)
from roll_learners.losses.kl import full_kl, k1, k2, k3, k3_importance
from roll_learners.losses.logprobs import kept_by_top_p, token_logprobs
from roll_learners.losses.policy import PolicyLoss, cispo, clipped_surrogate, gspo, turn_surrogate
from roll_learners.losses.preference import (
    bradley_terry,
    dpo,
    hinge,
    ipo,
    kto,
    kto_baseline,
    orpo,
    preference_logits,
    robust_dpo,
    simpo,
)
from roll_learners.losses.ratio import bounded_ratio, sequence_product, sequence_ratio
from roll_learners.losses.routing import replayed_gates
from roll_learners.losses.value import value_loss

__all__ = [
    "PolicyLoss",
    "adaptive_kl",
    "bounded_ratio",
    "bradley_terry",
    "cispo",
    "clipped_surrogate",
    "dpo",
    "entropy",
    "forward_kl",
    "full_kl",
    "generalised_js",
    "gmpo",
    "gspo",
    "hinge",
    "importance_gradient",
    "ipa_chunk",
    "ipa_trajectory",
    "ipo",
    "k1",
    "k2",
    "k3",
    "k3_importance",
    "kept_by_top_p",
    "kimi",
    "kto",
    "kto_baseline",
    "orpo",
    "policy_gradient",
    "preference_logits",
    "replayed_gates",
    "reverse_kl",
    "robust_dpo",
    "sapo",
    "sequence_product",
    "sequence_ratio",
    "simpo",
    "skewed_forward_kl",
    "skewed_reverse_kl",
    "token_logprobs",
    "topr",
    "topr_token",
    "truncated_gradient",
    "turn_surrogate",
    "value_loss",
]
