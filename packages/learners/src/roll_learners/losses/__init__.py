"""Token losses: flat log-probs in, one number a token out; `aggregation` sums them."""

from roll_learners.losses.entropy import entropy
from roll_learners.losses.kl import k1, k2, k3
from roll_learners.losses.logprobs import kept_by_top_p, token_logprobs
from roll_learners.losses.policy import PolicyLoss, cispo, clipped_surrogate, gspo, sequence_ratio

__all__ = [
    "PolicyLoss",
    "cispo",
    "clipped_surrogate",
    "entropy",
    "gspo",
    "k1",
    "k2",
    "k3",
    "kept_by_top_p",
    "sequence_ratio",
    "token_logprobs",
]
