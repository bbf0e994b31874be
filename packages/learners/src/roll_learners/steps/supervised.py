"""One step of supervised fine-tuning on demonstrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roll_learners.errors import LearnerError
from roll_learners.learner import Learner
from roll_learners.metrics import prefixed, summary
from roll_learners.objective import SupervisedObjective
from roll_learners.sample import Sample


def supervised_step(learner: Learner, samples: Sequence[Sample]) -> dict[str, float]:
    """One update towards the trained tokens, each of which weighs the same; its metrics.

    Args:
        learner: What is trained; its temperature should be 1.
        samples: Demonstrations. Rewards, groups and behavior log-probs are not looked at.

    Returns:
        actor/nll (nats a token), actor/grad_norm, actor/lr, actor/skipped_steps and response_length/*.

    Raises:
        LearnerError: There is no sample with a trained token, or one does not fit the learner.
    """
    lengths = np.array([sample.response_tokens for sample in samples], np.float64)
    if not lengths.sum():
        raise LearnerError(f"supervised_step: none of {len(samples)} samples has a trained token")
    metrics = prefixed(learner.update(samples, SupervisedObjective()), "actor")
    return metrics | summary("response_length", lengths)
