"""One step of supervised fine-tuning on demonstrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roll_learners.errors import LearnerError
from roll_learners.learner import Learner
from roll_learners.metrics import prefixed, summary
from roll_learners.objective import SupervisedObjective
from roll_learners.sample import Sample
from roll_learners.update import StepResult


def supervised_step(
    learner: Learner, samples: Sequence[Sample], *, aggregation: str = "token_mean"
) -> StepResult:
    """One update towards the trained tokens, each of which weighs the same, or each sample.

    Args:
        learner: What is trained; its temperature should be 1.
        samples: Demonstrations. Rewards, groups and behavior log-probs are not looked at.
        aggregation: "token_mean", or "seq_mean_token_mean" for the mean over samples of their means.

    Returns:
        actor/nll (nats a token), actor/grad_norm, actor/lr, actor/skipped_steps and response_length/*;
        and the update itself if it was skipped because it was not finite.

    Raises:
        LearnerError: The aggregation is unknown, no sample has a trained token, or one does not fit the
            learner.
    """
    lengths = np.array([sample.response_tokens for sample in samples], np.float64)
    if not lengths.sum():
        raise LearnerError(f"supervised_step: none of {len(samples)} samples has a trained token")
    result = learner.update(samples, SupervisedObjective(aggregation))
    skipped = () if result.skipped is None else (result.skipped,)
    return StepResult(
        metrics=prefixed(result.metrics, "actor") | summary("response_length", lengths),
        updates=1 - len(skipped),
        skipped=skipped,
    )
