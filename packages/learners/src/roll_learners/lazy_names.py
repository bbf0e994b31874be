"""Which module each name of the package is in that is imported only when it is asked for."""

from __future__ import annotations

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
    "objective": "LinearObjective Metric Objective SupervisedObjective Terms TokenBatch",
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
LAZY_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}
