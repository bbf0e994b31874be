"""One critic's work: values and updates, in the trainer's process, on a thread, or in an actor."""

import resource
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from roll_learners import Critic, LocalCritic, OptimizerSettings
from roll_learners.batch import Column
from roll_learners.sample import Sample
from roll_learners.segments import Totals
from roll_learners.update import UpdateResult
from roll_learners.value_objective import ValueTarget
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from roll_launch.models import load_value_model
from roll_launch.side_roles import CriticSpec


class SavedCritic(Critic, Protocol):
    """A critic that a trainer asks, wherever it is."""

    def save(self, path: Path) -> None:
        """Writes weights and optimizer into one file."""
        ...


class CriticWorker:
    """A `roll_learners.Critic` in this process. Methods block; call them from one thread at a time."""

    def __init__(self, spec: CriticSpec, *, alone: bool = False) -> None:
        """Builds the model.

        Args:
            spec: Of the critic.
            alone: Whether the process, or the thread, is its own.
        """
        if alone:
            torch.set_num_threads(spec.threads)
            disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        self._critic = LocalCritic(
            load_value_model(spec.model),
            optimizer=OptimizerSettings(**spec.optimizer.model_dump(), total_steps=spec.optimizer_steps),
            micro_batch_tokens=spec.micro_batch_tokens,
            device=spec.device,
        )
        if spec.resume is not None:
            state = torch.load(spec.resume, map_location="cpu", weights_only=True)
            self._critic.model.load_state_dict(state["model"])
            self._critic.load_state_dict(state["learner"])

    @property
    def model(self) -> PreTrainedModel:
        """Its weights."""
        return self._critic.model

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """See `roll_learners.Critic`."""
        return self._critic.values(samples)

    def update(
        self,
        samples: Sequence[Sample],
        objective: ValueTarget,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> UpdateResult:
        """See `roll_learners.Critic`."""
        return self._critic.update(samples, objective, totals=totals, indices=indices, **columns)

    def save(self, path: Path) -> None:
        """See `SavedCritic`."""
        torch.save({"model": self._critic.model.state_dict(), "learner": self._critic.state_dict()}, path)

    def peak_rss_gb(self) -> float:
        """Peak resident memory of this process, GiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


class ThreadCritic:
    """A critic on a thread of its own, asked from the trainer's thread."""

    def __init__(self, worker: CriticWorker, executor: Executor) -> None:
        self._worker, self._executor = worker, executor

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """See `roll_learners.Critic`."""
        return self._executor.submit(self._worker.values, samples).result()

    def update(
        self,
        samples: Sequence[Sample],
        objective: ValueTarget,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> UpdateResult:
        """See `roll_learners.Critic`."""
        arguments: Mapping[str, object] = {"totals": totals, "indices": indices, **columns}
        return self._executor.submit(self._worker.update, samples, objective, **arguments).result()  # type: ignore[arg-type]  # passed on as they came

    def save(self, path: Path) -> None:
        """See `SavedCritic`."""
        self._executor.submit(self._worker.save, path).result()
