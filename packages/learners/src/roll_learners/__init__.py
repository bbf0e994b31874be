"""Losses, advantages and the learners that run them; torch is imported when a name needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from roll_learners.algorithm import PRESETS, Algorithm, KlPenalty, make_algorithm, register_preset
from roll_learners.balance import partition, plan_ranks, plan_token_batches, sequence_costs
from roll_learners.compute import ComputeSettings
from roll_learners.correction import Correction
from roll_learners.critic_rule import CriticRule
from roll_learners.demonstrations import Demonstrations, demonstrations, keep_end
from roll_learners.distillation import Distillation
from roll_learners.errors import LearnerError
from roll_learners.kl_controller import KlController
from roll_learners.lora_settings import LoraSettings
from roll_learners.masks import conversation_mask, difficulty_mask, error_length_mask
from roll_learners.media import Media
from roll_learners.packing import Packed, pack
from roll_learners.preference import PREFERENCES, Kto, Preference
from roll_learners.registry import (
    ADVANTAGES,
    AGGREGATIONS,
    DIVERGENCES,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    PREFERENCE_LOSSES,
)
from roll_learners.rhythm import Rhythm
from roll_learners.sample import Sample, missing_end_token, trainable
from roll_learners.schedule import OptimizerSettings, learning_rate
from roll_learners.update import SkippedUpdate, StepResult, UpdateResult

if TYPE_CHECKING:
    from roll_learners.advantages import (
        Branches,
        Gae,
        HeadSignals,
        RhythmSignals,
        arpo_hard,
        batch_normalised,
        branch_points,
        choose_heads,
        crucial_chunks,
        deal_responses,
        disagreement,
        dr_grpo,
        explained_variance,
        gae,
        gigpo,
        gpg,
        grpo,
        hard_credit,
        head_signals,
        lite_ppo,
        look_back_changes,
        maxrl,
        mean_values,
        no_reward,
        on_policy_distillation,
        opo,
        prefix_nodes,
        raft_pp,
        raw_reward,
        reinforce,
        remax,
        rhythm_weights,
        rloo,
        scale_advantages,
        step_reinforce,
        token_rewards,
        turn_reinforce,
        turn_returns,
        where_critics_agree,
        where_critics_differ,
        whiten,
        zero_spread,
    )
    from roll_learners.aggregation import (
        constant_divisor,
        seq_mean_token_mean,
        seq_mean_token_sum,
        token_mean,
    )
    from roll_learners.attention import AttentionSource, LocalAttention, SignalColumns, middle_layers
    from roll_learners.conformance import CheckResult, check_learner
    from roll_learners.critic import Critic, LocalCritic
    from roll_learners.distillation_objective import DistillationObjective
    from roll_learners.fused_head import LogitsRule, linear_logprobs
    from roll_learners.invariance import RunnerCase, check_gradient
    from roll_learners.learner import Learner, LogprobSource
    from roll_learners.local import LocalLearner, WithoutAdapter
    from roll_learners.losses import (
        PolicyLoss,
        adaptive_kl,
        bounded_ratio,
        bradley_terry,
        cispo,
        clipped_surrogate,
        dpo,
        entropy,
        forward_kl,
        full_kl,
        generalised_js,
        gmpo,
        gspo,
        hinge,
        importance_gradient,
        ipa_chunk,
        ipa_trajectory,
        ipo,
        k1,
        k2,
        k3,
        k3_importance,
        kept_by_top_p,
        kimi,
        kto,
        kto_baseline,
        orpo,
        policy_gradient,
        preference_logits,
        replayed_gates,
        reverse_kl,
        robust_dpo,
        sapo,
        sequence_product,
        sequence_ratio,
        simpo,
        skewed_forward_kl,
        skewed_reverse_kl,
        token_logprobs,
        topr,
        topr_token,
        truncated_gradient,
        turn_surrogate,
        value_loss,
    )
    from roll_learners.mismatch import (
        CorrectionWeights,
        ProbabilityGap,
        correction_weights,
        mismatch_ratio,
        probability_gap,
    )
    from roll_learners.objective import Metric, Objective, SupervisedObjective, Terms, TokenBatch
    from roll_learners.policy_objective import PolicyObjective, ReferenceLogits
    from roll_learners.routing import Routers
    from roll_learners.scoring import LocalScorer, TopLogits
    from roll_learners.segments import Segments, Totals, Turns, response_tokens
    from roll_learners.sequence_objective import SequenceObjective
    from roll_learners.steps import (
        DistillationTeacher,
        DistributionSource,
        Pair,
        Roles,
        StateSource,
        Teacher,
        distillation_step,
        kto_metrics,
        kto_step,
        policy_step,
        preference_metrics,
        preference_step,
        reward_model_metrics,
        reward_model_step,
        supervised_step,
    )
    from roll_learners.value_objective import ScoreObjective, ValueBatch, ValueObjective, ValueTarget

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "DIVERGENCES",
    "KL_ESTIMATORS",
    "POLICY_LOSSES",
    "PREFERENCES",
    "PREFERENCE_LOSSES",
    "PRESETS",
    "Algorithm",
    "AttentionSource",
    "Branches",
    "CheckResult",
    "ComputeSettings",
    "Correction",
    "CorrectionWeights",
    "Critic",
    "CriticRule",
    "Demonstrations",
    "Distillation",
    "DistillationObjective",
    "DistillationTeacher",
    "DistributionSource",
    "Gae",
    "HeadSignals",
    "KlController",
    "KlPenalty",
    "Kto",
    "Learner",
    "LearnerError",
    "LocalAttention",
    "LocalCritic",
    "LocalLearner",
    "LocalScorer",
    "LogitsRule",
    "LogprobSource",
    "LoraSettings",
    "Media",
    "Metric",
    "Objective",
    "OptimizerSettings",
    "Packed",
    "Pair",
    "PolicyLoss",
    "PolicyObjective",
    "Preference",
    "ProbabilityGap",
    "ReferenceLogits",
    "Rhythm",
    "RhythmSignals",
    "Roles",
    "Routers",
    "RunnerCase",
    "Sample",
    "ScoreObjective",
    "Segments",
    "SequenceObjective",
    "SignalColumns",
    "SkippedUpdate",
    "StateSource",
    "StepResult",
    "SupervisedObjective",
    "Teacher",
    "Terms",
    "TokenBatch",
    "TopLogits",
    "Totals",
    "Turns",
    "UpdateResult",
    "ValueBatch",
    "ValueObjective",
    "ValueTarget",
    "WithoutAdapter",
    "adaptive_kl",
    "arpo_hard",
    "batch_normalised",
    "bounded_ratio",
    "bradley_terry",
    "branch_points",
    "check_gradient",
    "check_learner",
    "choose_heads",
    "cispo",
    "clipped_surrogate",
    "constant_divisor",
    "conversation_mask",
    "correction_weights",
    "crucial_chunks",
    "deal_responses",
    "demonstrations",
    "difficulty_mask",
    "disagreement",
    "distillation_step",
    "dpo",
    "dr_grpo",
    "entropy",
    "error_length_mask",
    "explained_variance",
    "forward_kl",
    "full_kl",
    "gae",
    "generalised_js",
    "gigpo",
    "gmpo",
    "gpg",
    "grpo",
    "gspo",
    "hard_credit",
    "head_signals",
    "hinge",
    "importance_gradient",
    "ipa_chunk",
    "ipa_trajectory",
    "ipo",
    "k1",
    "k2",
    "k3",
    "k3_importance",
    "keep_end",
    "kept_by_top_p",
    "kimi",
    "kto",
    "kto_baseline",
    "kto_metrics",
    "kto_step",
    "learning_rate",
    "linear_logprobs",
    "lite_ppo",
    "look_back_changes",
    "make_algorithm",
    "maxrl",
    "mean_values",
    "middle_layers",
    "mismatch_ratio",
    "missing_end_token",
    "no_reward",
    "on_policy_distillation",
    "opo",
    "orpo",
    "pack",
    "partition",
    "plan_ranks",
    "plan_token_batches",
    "policy_gradient",
    "policy_step",
    "preference_logits",
    "preference_metrics",
    "preference_step",
    "prefix_nodes",
    "probability_gap",
    "raft_pp",
    "raw_reward",
    "register_preset",
    "reinforce",
    "remax",
    "replayed_gates",
    "response_tokens",
    "reverse_kl",
    "reward_model_metrics",
    "reward_model_step",
    "rhythm_weights",
    "rloo",
    "robust_dpo",
    "sapo",
    "scale_advantages",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "sequence_costs",
    "sequence_product",
    "sequence_ratio",
    "simpo",
    "skewed_forward_kl",
    "skewed_reverse_kl",
    "step_reinforce",
    "supervised_step",
    "token_logprobs",
    "token_mean",
    "token_rewards",
    "topr",
    "topr_token",
    "trainable",
    "truncated_gradient",
    "turn_reinforce",
    "turn_returns",
    "turn_surrogate",
    "value_loss",
    "where_critics_agree",
    "where_critics_differ",
    "whiten",
    "zero_spread",
]

_MODULES = {
    "advantages": (
        "Branches Gae HeadSignals RhythmSignals arpo_hard batch_normalised branch_points "
        "choose_heads deal_responses disagreement dr_grpo explained_variance gae gigpo gpg grpo "
        "crucial_chunks hard_credit head_signals lite_ppo opo look_back_changes maxrl mean_values no_reward "
        "on_policy_distillation prefix_nodes raft_pp raw_reward reinforce remax rhythm_weights rloo "
        "scale_advantages step_reinforce token_rewards turn_reinforce turn_returns "
        "where_critics_agree where_critics_differ whiten zero_spread"
    ),
    "aggregation": "constant_divisor seq_mean_token_mean seq_mean_token_sum token_mean",
    "attention": "AttentionSource LocalAttention SignalColumns middle_layers",
    "conformance": "CheckResult check_learner",
    "critic": "Critic LocalCritic",
    "distillation_objective": "DistillationObjective",
    "fused_head": "LogitsRule linear_logprobs",
    "invariance": "RunnerCase check_gradient",
    "learner": "Learner LogprobSource",
    "local": "LocalLearner WithoutAdapter",
    "losses": (
        "PolicyLoss adaptive_kl bounded_ratio bradley_terry cispo clipped_surrogate dpo entropy "
        "forward_kl full_kl generalised_js gmpo gspo hinge importance_gradient ipa_chunk "
        "ipa_trajectory ipo k1 k2 k3 k3_importance kept_by_top_p kimi kto kto_baseline orpo "
        "policy_gradient preference_logits replayed_gates reverse_kl robust_dpo sapo "
        "sequence_product sequence_ratio simpo skewed_forward_kl skewed_reverse_kl token_logprobs "
        "topr topr_token truncated_gradient turn_surrogate value_loss"
    ),
    "mismatch": "CorrectionWeights ProbabilityGap correction_weights mismatch_ratio probability_gap",
    "objective": "Metric Objective SupervisedObjective Terms TokenBatch",
    "policy_objective": "PolicyObjective ReferenceLogits",
    "routing": "Routers",
    "scoring": "LocalScorer TopLogits",
    "segments": "Segments Totals Turns response_tokens",
    "sequence_objective": "SequenceObjective",
    "steps": (
        "DistillationTeacher DistributionSource Pair Roles StateSource Teacher distillation_step "
        "kto_metrics kto_step policy_step preference_metrics preference_step reward_model_metrics "
        "reward_model_step supervised_step"
    ),
    "value_objective": "ScoreObjective ValueBatch ValueObjective ValueTarget",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'roll_learners' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll_learners.{_LAZY[name]}"), name)
