"""Advantage estimators: rewards in, one number a sequence or a token out."""

from roll_learners.advantages.baseline import no_reward, raw_reward, remax
from roll_learners.advantages.distillation import on_policy_distillation
from roll_learners.advantages.ensemble import (
    deal_responses,
    disagreement,
    explained_variance,
    mean_values,
    where_critics_agree,
    where_critics_differ,
)
from roll_learners.advantages.gae import Gae, gae
from roll_learners.advantages.group import (
    batch_normalised,
    dr_grpo,
    gpg,
    grpo,
    lite_ppo,
    opo,
    rloo,
    whiten,
    zero_spread,
)
from roll_learners.advantages.returns import reinforce, token_rewards
from roll_learners.advantages.rhythm import (
    HeadSignals,
    RhythmSignals,
    choose_heads,
    head_signals,
    look_back_changes,
    rhythm_weights,
    scale_advantages,
)
from roll_learners.advantages.shared_prefix import (
    Branches,
    arpo_hard,
    branch_points,
    hard_credit,
    prefix_nodes,
)
from roll_learners.advantages.success import maxrl, raft_pp
from roll_learners.advantages.turns import crucial_chunks, gigpo, step_reinforce, turn_reinforce, turn_returns

__all__ = [
    "Branches",
    "Gae",
    "HeadSignals",
    "RhythmSignals",
    "arpo_hard",
    "batch_normalised",
    "branch_points",
    "choose_heads",
    "crucial_chunks",
    "deal_responses",
    "disagreement",
    "dr_grpo",
    "explained_variance",
    "gae",
    "gigpo",
    "gpg",
    "grpo",
    "hard_credit",
    "head_signals",
    "lite_ppo",
    "look_back_changes",
    "maxrl",
    "mean_values",
    "no_reward",
    "on_policy_distillation",
    "opo",
    "prefix_nodes",
    "raft_pp",
    "raw_reward",
    "reinforce",
    "remax",
    "rhythm_weights",
    "rloo",
    "scale_advantages",
    "step_reinforce",
    "token_rewards",
    "turn_reinforce",
    "turn_returns",
    "where_critics_agree",
    "where_critics_differ",
    "whiten",
    "zero_spread",
]
