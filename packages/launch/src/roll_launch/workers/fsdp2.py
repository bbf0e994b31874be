"""One rank of a trainer on several: joins the others, then does what a trainer does, all of them at once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from roll_learners.fsdp2 import Fsdp2Learner, load_checkpoint, save_checkpoint
from roll_rollout.sync import ObjectStore, Publication
from torch._C._distributed_c10d import Store

from roll_launch.roles import TrainerSpec
from roll_launch.workers.fsdp2_learners import fsdp2_settings
from roll_launch.workers.trainer import TRAINER_STATE, TrainerWorker

SHARDS = "fsdp2"
"""Directory of a checkpoint's shards."""

COLLECTIVE_DEADLINE = timedelta(hours=1)
"""A rank waits so long for one that lives but does not come; one that dies is seen at once."""


class Fsdp2TrainerWorker(TrainerWorker):
    """One rank. Each method is called on every rank, with the same arguments."""

    def __init__(
        self, spec: TrainerSpec, rank: int, meeting: Store, store: ObjectStore | None = None
    ) -> None:
        """Joins the group and builds the models.

        Args:
            spec: Of the whole trainer.
            rank: From 0.
            meeting: Where the ranks meet.
            store: As of `TrainerWorker`.
        """
        settings = fsdp2_settings(spec)
        torch.set_num_threads(spec.threads)
        dist.init_process_group(
            "gloo" if settings.device == "cpu" else "cpu:gloo,cuda:nccl",
            store=meeting,
            rank=rank,
            world_size=settings.ranks,
            timeout=COLLECTIVE_DEADLINE,
        )
        self._rank = rank
        super().__init__(spec, store=store)

    @property
    def _shards(self) -> Fsdp2Learner:
        learner: object = self._learner
        if not isinstance(learner, Fsdp2Learner):
            raise TypeError(f"rank {self._rank} trains {type(learner).__name__}, not an Fsdp2Learner")
        return learner

    def publish(self, version: int) -> tuple[Publication | None, str]:  # type: ignore[override]  # None of others
        """As of `TrainerWorker` on the first rank, which alone keeps weights; the others help to gather."""
        if self._rank == 0:
            return super().publish(version)
        for _ in self._shards.export_weights():
            pass
        return None, ""

    def save(self, directory: Path, state: bool) -> None:
        """Writes a Hugging Face directory, or, with state, the shards of every rank and a configuration."""
        if not state:
            self._shards.save_pretrained(directory)
        else:
            save_checkpoint(self._shards, directory / SHARDS)
        if self._rank:
            return
        self._tokenizer.save_pretrained(directory)
        if state:
            self._shards.model.config.save_pretrained(directory)
            torch.save(self._own_state(), directory / TRAINER_STATE)

    def _own_state(self) -> dict[str, Any]:
        own: dict[str, Any] = {"rng": self._rng.bit_generator.state, "steps": self._steps}
        return own if self._kl is None else own | {"kl_coef": self._kl.coef}

    def _load_state(self, path: Path) -> None:
        state = torch.load(path, map_location="cpu", weights_only=True)
        load_checkpoint(self._shards, path.parent / SHARDS)
        self._rng.bit_generator.state = state["rng"]
        self._steps = state["steps"]
        if self._kl is not None:
            self._kl.coef = state["kl_coef"]
