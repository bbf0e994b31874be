"""Losses, advantages and the learners that run them; torch is imported when a name needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from roll_learners.algorithm import PRESETS, Algorithm, KlPenalty, make_algorithm, register_preset
from roll_learners.errors import LearnerError
from roll_learners.registry import ADVANTAGES, AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES
from roll_learners.sample import Sample, missing_end_token, trainable
from roll_learners.schedule import OptimizerSettings, learning_rate
from roll_learners.update import SkippedUpdate, StepResult, UpdateResult

if TYPE_CHECKING:
    from roll_learners.advantages import (
        Gae,
        dr_grpo,
        gae,
        grpo,
        lite_ppo,
        reinforce,
        rloo,
        token_rewards,
        whiten,
        zero_spread,
    )
    from roll_learners.aggregation import (
        constant_divisor,
        seq_mean_token_mean,
        seq_mean_token_sum,
        token_mean,
    )
    from roll_learners.conformance import CheckResult, check_learner
    from roll_learners.learner import Learner, LogprobSource
    from roll_learners.local import LocalLearner
    from roll_learners.losses import (
        PolicyLoss,
        cispo,
        clipped_surrogate,
        entropy,
        gspo,
        k1,
        k2,
        k3,
        kept_by_top_p,
        sequence_ratio,
        token_logprobs,
    )
    from roll_learners.mismatch import ProbabilityGap, probability_gap
    from roll_learners.objective import (
        Metric,
        Objective,
        PolicyObjective,
        SupervisedObjective,
        Terms,
        TokenBatch,
    )
    from roll_learners.scoring import LocalScorer
    from roll_learners.segments import Segments, Totals, response_tokens
    from roll_learners.steps import policy_step, supervised_step

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "POLICY_LOSSES",
    "PRESETS",
    "Algorithm",
    "CheckResult",
    "Gae",
    "KlPenalty",
    "Learner",
    "LearnerError",
    "LocalLearner",
    "LocalScorer",
    "LogprobSource",
    "Metric",
    "Objective",
    "OptimizerSettings",
    "PolicyLoss",
    "PolicyObjective",
    "ProbabilityGap",
    "Sample",
    "Segments",
    "SkippedUpdate",
    "StepResult",
    "SupervisedObjective",
    "Terms",
    "TokenBatch",
    "Totals",
    "UpdateResult",
    "check_learner",
    "cispo",
    "clipped_surrogate",
    "constant_divisor",
    "dr_grpo",
    "entropy",
    "gae",
    "grpo",
    "gspo",
    "k1",
    "k2",
    "k3",
    "kept_by_top_p",
    "learning_rate",
    "lite_ppo",
    "make_algorithm",
    "missing_end_token",
    "policy_step",
    "probability_gap",
    "register_preset",
    "reinforce",
    "response_tokens",
    "rloo",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "sequence_ratio",
    "supervised_step",
    "token_logprobs",
    "token_mean",
    "token_rewards",
    "trainable",
    "whiten",
    "zero_spread",
]

_LAZY = {
    "CheckResult": "conformance",
    "Gae": "advantages",
    "Learner": "learner",
    "LocalLearner": "local",
    "LocalScorer": "scoring",
    "LogprobSource": "learner",
    "Metric": "objective",
    "Objective": "objective",
    "PolicyLoss": "losses",
    "PolicyObjective": "objective",
    "ProbabilityGap": "mismatch",
    "Segments": "segments",
    "SupervisedObjective": "objective",
    "Terms": "objective",
    "TokenBatch": "objective",
    "Totals": "segments",
    "check_learner": "conformance",
    "cispo": "losses",
    "clipped_surrogate": "losses",
    "constant_divisor": "aggregation",
    "dr_grpo": "advantages",
    "entropy": "losses",
    "gae": "advantages",
    "grpo": "advantages",
    "gspo": "losses",
    "k1": "losses",
    "k2": "losses",
    "k3": "losses",
    "kept_by_top_p": "losses",
    "lite_ppo": "advantages",
    "policy_step": "steps",
    "probability_gap": "mismatch",
    "reinforce": "advantages",
    "response_tokens": "segments",
    "rloo": "advantages",
    "seq_mean_token_mean": "aggregation",
    "seq_mean_token_sum": "aggregation",
    "sequence_ratio": "losses",
    "supervised_step": "steps",
    "token_logprobs": "losses",
    "token_mean": "aggregation",
    "token_rewards": "advantages",
    "whiten": "advantages",
    "zero_spread": "advantages",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'roll_learners' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll_learners.{_LAZY[name]}"), name)
