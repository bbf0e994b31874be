"""Sharded checkpoints by Megatron-Core: each process writes what it holds, and any layout reads it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException

from roll_learners.errors import LearnerError
from roll_learners.megatron.layout import MegatronLayout
from roll_learners.megatron.trained import MegatronModel

METADATA = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
"""The form of the optimizer's state that every layout can read."""


def save_checkpoint(trained: MegatronModel[Any], directory: str | PathLike[str]) -> None:
    """Writes weights, optimizer and number of updates; all processes call it.

    Nothing is drawn at random in training, so there is no random state.

    Args:
        trained: Of every process.
        directory: Which all processes see; made if it is not there, and empty if it is.

    Raises:
        LearnerError: It could not be written, on the process that failed.
    """
    target = Path(directory)
    if dist.get_rank() == 0:
        target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    try:
        dist_checkpointing.save(_state(trained, loading=False), str(target), content_metadata=METADATA)
    except (OSError, CheckpointingException) as error:
        raise LearnerError(f"{directory}: a sharded checkpoint was not written: {error}") from error
    dist.barrier()


def load_checkpoint(trained: MegatronModel[Any], directory: str | PathLike[str]) -> None:
    """Takes on a checkpoint that any layout wrote with the distributed optimizer; all processes call it.

    Args:
        trained: Of every process.
        directory: Of `save_checkpoint`.

    Raises:
        LearnerError: There is none, or it is of another model.
    """
    if not dist_checkpointing.check_is_distributed_checkpoint(str(directory)):
        raise LearnerError(f"megatron: {directory} holds no sharded checkpoint")
    state = _state(trained, loading=True)
    try:
        loaded: dict[str, Any] = dist_checkpointing.load(state, str(directory))
    except (OSError, CheckpointingException, KeyError, ValueError) as error:
        raise LearnerError(f"{directory}: the sharded checkpoint does not fit this model: {error}") from error
    for number, part in enumerate(trained.loaded.parts):
        part.load_state_dict(loaded[f"part{number}"])
    trained.updates = int(loaded["updates"])
    trained.adamw.take_state(loaded["optimizer"], trained.updates)


def _state(trained: MegatronModel[Any], *, loading: bool) -> dict[str, Any]:
    layout: MegatronLayout = trained.loaded.groups.layout
    if not layout.distributed_optimizer:
        raise LearnerError(
            "megatron: layout.distributed_optimizer is false: sharded checkpoints need it to be true"
        )
    trained.adamw.fill_state()
    state: dict[str, Any] = {
        f"part{number}": part.sharded_state_dict(metadata=dict(METADATA))
        for number, part in enumerate(trained.loaded.parts)
    }
    state["optimizer"] = trained.adamw.library.sharded_state_dict(
        dict(state), is_loading=loading, metadata=dict(METADATA)
    )
    state["updates"] = trained.updates
    return state
