"""What steps on preferences say of rows, without an update: the same numbers, and nothing changes."""

import numpy as np
import pytest
from roll_learners import (
    PREFERENCES,
    Kto,
    Pair,
    kto_metrics,
    kto_step,
    preference_metrics,
    preference_step,
)
from roll_learners.sample import Sample
from roll_learners.update import UpdateResult


class _Policy:
    """Log-probs that depend on the tokens; an update changes nothing, but is counted."""

    def __init__(self, scale: float) -> None:
        self.scale, self.updates = scale, 0

    def logprobs(self, samples):
        return [np.where(s.response_mask, -self.scale * s.token_ids / 10.0, 0.0) for s in samples]

    def update(self, samples, objective, **columns) -> UpdateResult:
        self.updates += 1
        loss = float(np.sum(columns["share"]))
        return UpdateResult(metrics={"sequence_loss": loss, "skipped_steps": 0.0, "tokens": 1.0})


def _sample(*response: int, reward: float = 0.0) -> Sample:
    return Sample.from_completion(np.array([5], np.int32), np.array(response, np.int32), reward=reward)


PAIRS = [Pair(_sample(1, 2), _sample(4, 4, 4)), Pair(_sample(7), _sample(2, 1))]


@pytest.mark.parametrize("name", PREFERENCES)
def test_pairs(name: str) -> None:
    policy, reference = _Policy(1.0), _Policy(0.5)
    told = preference_metrics(policy, PAIRS, PREFERENCES[name], reference=reference)
    assert policy.updates == 0
    stepped = preference_step(policy, PAIRS, PREFERENCES[name], reference=reference).metrics
    assert policy.updates == 1
    assert told == pytest.approx({key: stepped[key] for key in told}) and "actor/sequence_loss" in told
    assert told["rewards/accuracies"] in (0.0, 0.5, 1.0)


def test_single_responses() -> None:
    samples = [_sample(1, 2, reward=1.0), _sample(4, 4), _sample(7, reward=1.0)]
    policy, reference = _Policy(1.0), _Policy(0.5)
    told = kto_metrics(policy, samples, Kto(), reference=reference)
    assert policy.updates == 0
    stepped = kto_step(policy, samples, Kto(), reference=reference).metrics
    assert told == pytest.approx({key: stepped[key] for key in told})
    assert {"rewards/desirable", "rewards/undesirable", "kto/baseline"} <= told.keys()
