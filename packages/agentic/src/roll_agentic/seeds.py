"""Seeds of episodes. Called by whoever runs groups of episodes."""

import hashlib
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["train", "validation"]


def episode_seed(run_seed: int, group: int, *, split: Split = "train") -> int:
    """The seed that all members of a group reset their environments with.

    Args:
        run_seed: Seed of the run.
        group: Number of the group's occurrence in the run: 0, 1, 2, ... over all steps.
        split: Seeds for training are even, those for validation odd, so that no episode is in both.

    Returns:
        A number 0..2**63 - 1, the same on every platform and in every process; distinct groups get
        distinct seeds, but for an accident of 1 in 2**62 a pair.
    """
    digest = hashlib.sha256(f"episode/{run_seed}/{group}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 2
    return number * 2 + (split == "validation")
