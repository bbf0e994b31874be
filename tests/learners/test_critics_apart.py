"""Critics of other processes learn beside each other: in any order of arrival, with the same numbers."""

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from roll_learners.critic_rule import CriticRule
from roll_learners.sample import Sample
from roll_learners.steps.critic import critic_step, critic_values, start_critic_step
from roll_learners.update import UpdateResult


class _Critic:
    """Tells what it was given; waits for the others if there is a barrier."""

    def __init__(self, barrier: threading.Barrier | None = None, error: Exception | None = None) -> None:
        self.given: list[tuple[int, ...]] = []
        self._barrier, self._error = barrier, error

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        if self._barrier is not None:
            self._barrier.wait(timeout=20)
        return [np.ones(len(sample.token_ids), np.float32) for sample in samples]

    def update(self, samples, objective, *, totals=None, indices=None, **columns) -> UpdateResult:
        if self._barrier is not None:
            self._barrier.wait(timeout=20)
        if self._error is not None:
            raise self._error
        self.given.append(tuple(indices))
        return UpdateResult(metrics={"vf_loss": float(sum(indices)), "skipped_steps": 0.0, "tokens": 1.0})


SAMPLES = [
    Sample.from_completion(np.array([5], np.int32), np.array([6, 7], np.int32), reward=1.0, group=number // 4)
    for number in range(8)
]
RULE = CriticRule(targets="monte_carlo")


def _arguments(critics: Sequence[_Critic], seed: int):
    return (
        (critics, SAMPLES, torch.ones(16, dtype=torch.float64), RULE),
        {"values": None, "mini_batches": 2, "epochs": 2, "rng": np.random.default_rng(seed)},
    )


def test_the_same_samples_in_the_same_order_as_one_after_the_other() -> None:
    here, apart = [_Critic(), _Critic()], [_Critic(), _Critic()]
    positional, named = _arguments(here, 3)
    expected = critic_step(*positional, **named)
    positional, named = _arguments(apart, 3)
    assert start_critic_step(*positional, **named, apart=True).result() == expected
    assert [each.given for each in apart] == [each.given for each in here] != [[], []]


def test_critics_learn_at_the_same_time() -> None:
    """Each waits until both are in their update: one after the other this would never end."""
    barrier = threading.Barrier(2)
    critics = [_Critic(barrier), _Critic(barrier)]
    assert critic_values(critics, SAMPLES, apart=True).shape == (2, 16)
    positional, named = _arguments(critics, 0)
    start_critic_step(*positional, **named, apart=True).result()
    assert [len(each.given) for each in critics] == [4, 4]


def test_what_a_critic_raises_is_raised_when_its_result_is_asked_for() -> None:
    positional, named = _arguments([_Critic(), _Critic(error=OSError("gone"))], 0)
    updates = start_critic_step(*positional, **named, apart=True)
    with pytest.raises(OSError, match="gone"):
        updates.result()
