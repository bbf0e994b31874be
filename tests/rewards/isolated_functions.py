"""Reward functions that a worker process imports."""

import time

from roll_rewards import Score


def sleeper(response: str) -> float:
    """Does not answer in time."""
    time.sleep(60)
    return 1.0


def worker_score(response: str, reference: str) -> Score:
    """Whether the two are equal."""
    return Score(value=float(response == reference), parsed=response)
