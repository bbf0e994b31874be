"""Numbers about updates: reduced over micro-batches, then merged over the updates of a step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from roll_learners.objective import Metric, Reduction

OF_UPDATE = frozenset({"grad_norm", "kl_loss", "loss", "lr", "nll", "pg_loss"})
"""Metrics of an update as a whole; all others are means over its computed tokens."""


class MetricTally:
    """Collects the metrics of the micro-batches of one update; nothing is read off a device before
    `results`."""

    def __init__(self) -> None:
        self._parts: defaultdict[tuple[str, Reduction], list[torch.Tensor]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Takes in one micro-batch."""
        for name, metric in metrics.items():
            self._parts[name, metric.reduction].append(metric.values.reshape(-1))

    def metrics(self) -> dict[str, Metric]:
        """What was taken in so far, for the tally of another rank."""
        return {name: Metric(torch.cat(parts), reduction) for (name, reduction), parts in self._parts.items()}

    def results(self) -> dict[str, float]:
        """The metrics of the update; one without a value is left out."""
        numbers: dict[str, float] = {}
        for (name, reduction), parts in self._parts.items():
            values = torch.cat(parts).double()
            if not len(values):
                continue
            if reduction == "sum":
                numbers[name] = values.sum().item()
            elif reduction == "mean":
                numbers[name] = values.mean().item()
            else:
                numbers[f"{name}_mean"] = values.mean().item()
                numbers[f"{name}_max"] = values.max().item()
                numbers[f"{name}_std"] = values.std(correction=0).item()
        return numbers


def merge_updates(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several updates as one.

    Token metrics are weighted by each update's "tokens"; those of `OF_UPDATE` are averaged, except the
    learning rate, of which the last counts; "skipped_steps" and "tokens" are summed. A skipped
    update gives no other number.
    """
    merged = {key: sum(update[key] for update in updates) for key in ("skipped_steps", "tokens")}
    taken = [update for update in updates if not update["skipped_steps"]]
    for name in sorted({name for update in taken for name in update} - merged.keys()):
        with_it = [update for update in taken if name in update]
        values = np.array([update[name] for update in with_it])
        tokens = np.array([update["tokens"] for update in with_it])
        if name == "lr":
            merged[name] = float(values[-1])
        elif name in OF_UPDATE:
            merged[name] = float(values.mean())
        elif name.endswith("_max"):
            merged[name] = float(values.max())
        elif name.endswith("_std"):
            means = np.array([update[f"{name[:-4]}_mean"] for update in with_it])
            merged[name] = _pooled_deviation(values, means, tokens)
        else:
            merged[name] = float(np.average(values, weights=tokens))
    return merged


def summary(name: str, values: npt.NDArray[np.floating]) -> dict[str, float]:
    """Mean, max and min of finite values, under name/mean, name/max and name/min; {} if there is none."""
    if not len(values):
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def prefixed(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """The metrics with the prefix before each name that has none."""
    return {name if "/" in name else f"{prefix}/{name}": value for name, value in metrics.items()}


def _pooled_deviation(
    deviations: npt.NDArray[np.float64], means: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> float:
    mean = np.average(means, weights=weights)
    return math.sqrt(np.average(deviations**2 + (means - mean) ** 2, weights=weights))
