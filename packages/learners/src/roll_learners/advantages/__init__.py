"""Advantage estimators: rewards in, one number a sequence or a token out."""

from roll_learners.advantages.gae import Gae, gae
from roll_learners.advantages.group import dr_grpo, grpo, lite_ppo, rloo, whiten, zero_spread
from roll_learners.advantages.returns import reinforce, token_rewards

__all__ = [
    "Gae",
    "dr_grpo",
    "gae",
    "grpo",
    "lite_ppo",
    "reinforce",
    "rloo",
    "token_rewards",
    "whiten",
    "zero_spread",
]
