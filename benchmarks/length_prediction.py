"""How well lengths are predicted in the simulator, and what longest-first order makes of it; prints Markdown.

    uv run python benchmarks/length_prediction.py

16 replicas of 64 slots, 256 prompts x 16 a step (trace D: 128 x 8), two epochs of three steps each. First
rank correlations between predicted and real lengths, then how much faster rollouts are than first come, first
served. Oracles know what nobody does: the mean length of each group, or every length.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from roll_scheduler import LengthPredictor
from roll_scheduler.simulator import (
    TRACES,
    EngineModel,
    LognormalLengths,
    Setting,
    SimulationResult,
    Workload,
    longest_first,
    simulate,
)

STEPS = 3
EPOCHS = 2


class GroupOracle:
    """Knows the mean length of each prompt's completions in the epoch that it is asked about."""

    def __init__(self, lengths: LognormalLengths, members: int) -> None:
        self._lengths = lengths
        self._members = members

    def observe(self, key: object, domain: str, tokens: float, truncated: bool = False) -> None:
        """Learns nothing."""

    def expected(
        self, key: object, domain: str = "", *, so_far: float = 0.0, running: Sequence[float] = ()
    ) -> float:
        """The mean of the group, whose number the key is."""
        group = int(str(key))
        return float(np.mean([self._lengths.tokens(group, member) for member in range(self._members)]))


def setting_of(trace: str, *, known: bool) -> Setting:
    """The setting; with `known` prompts, the second epoch has the prompts of the first."""
    groups, size = (128, 8) if trace == "D" else (256, 16)
    lengths = LognormalLengths(TRACES[trace], seed=0, prompts=groups * STEPS)
    engine = EngineModel(slots=64, base_s=0.010, sequence_s=50e-6)
    return Setting(
        workload=Workload(lengths, prompts=groups * STEPS if known else None),
        engines=(engine,) * 16,
        groups_per_batch=groups,
        group_size=size,
    )


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's, ties in order of appearance."""
    ranks = [np.argsort(np.argsort(np.asarray(values), kind="stable")) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def correlations(setting: Setting) -> list[float]:
    """Predicted against real lengths: after one and four siblings, of known prompts, by the group's mean."""
    lengths, size = setting.workload.lengths, setting.group_size
    prompts = setting.groups_per_batch * STEPS
    groups = range(2 * prompts)
    tokens = np.array([[lengths.tokens(group, member) for member in range(size)] for group in groups])
    taught = LengthPredictor(cap=lengths.cap)
    for group in range(prompts):
        for length in tokens[group]:
            taught.observe(str(group), "", int(length))
    known = [taught.expected(str(group)) for group in range(prompts)]
    ahead = tokens[prompts:]
    found = []
    for siblings in (1, 4):
        predicted = []
        for group in range(prompts):
            key = (siblings, group)
            for length in ahead[group, :siblings]:
                taught.observe(key, "", int(length))
            predicted.append(taught.expected(key))
        found.append(rank_correlation(np.repeat(predicted, size - 4), ahead[:, 4:].ravel()))
    found.append(rank_correlation(np.repeat(known, size), ahead.ravel()))
    found.append(rank_correlation(np.repeat(ahead.mean(axis=1), size), ahead.ravel()))
    return found


def rollouts(result: SimulationResult, epoch: int) -> float:
    """Mean seconds of a rollout in an epoch."""
    return float(np.mean([step.rollout_s for step in result.steps[epoch * STEPS : (epoch + 1) * STEPS]]))


def row(trace: str) -> str:
    """One line of the table."""
    setting, known = setting_of(trace, known=False), setting_of(trace, known=True)
    steps = STEPS * EPOCHS
    fifo = simulate(setting, setting.policy(), steps=steps)
    policy = setting.policy(order="longest_first")
    predicted = simulate(known, policy, steps=steps)
    oracle = GroupOracle(setting.workload.lengths, setting.group_size)  # type: ignore[arg-type]  # is lognormal
    by_group = simulate(setting, policy, steps=steps, estimator=oracle)
    by_length = longest_first(setting, steps=steps)
    cells = [trace, *(f"{value:.2f}" for value in correlations(setting)), f"{rollouts(fifo, 0):.0f}"]
    for result, epoch in ((predicted, 0), (predicted, 1), (by_group, 1), (by_length, 1)):
        cells.append(f"{rollouts(fifo, epoch) / rollouts(result, epoch):.3f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table."""
    heads = (
        "trace", "1 sibling", "4 siblings", "known prompt", "group mean", "FIFO s", "predicted, epoch 1",
        "predicted, epoch 2", "oracle of groups", "oracle of lengths",
    )  # fmt: skip
    print("| " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * (len(heads) - 1))
    for trace in TRACES:
        print(row(trace), flush=True)


if __name__ == "__main__":
    main()
