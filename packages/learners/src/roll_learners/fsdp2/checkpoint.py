"""Sharded checkpoints: every rank writes what it holds, and any layout reads what it needs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from roll_learners.errors import LearnerError
from roll_learners.fsdp2.learner import Fsdp2Learner

RANDOM = "random"

ALONE = "torch.distributed is disabled, unavailable or uninitialized"
"""How a warning begins that a checkpoint is read or written by one process, which is what was asked for."""


class SavedState:
    """A checkpoint that is being written in the background; the learner may go on meanwhile."""

    def __init__(self, future: Future[Any], group: dist.ProcessGroup) -> None:
        self._future = future
        self._group = group

    @property
    def done(self) -> bool:
        """Whether this rank has nothing left to write; `wait` tells whether it succeeded."""
        return self._future.done()

    def wait(self) -> None:
        """Returns when every rank has written; all ranks call it.

        Raises:
            LearnerError: It could not be written.
        """
        try:
            self._future.result()
        except (OSError, CheckpointException, RuntimeError) as error:
            raise LearnerError(f"a sharded checkpoint was not written: {error}") from error
        dist.barrier(group=self._group)
        dist.destroy_process_group(self._group)


def save_checkpoint(learner: Fsdp2Learner, directory: Path) -> None:
    """Writes weights, optimizer, number of updates and each rank's random state; all ranks call it.

    Args:
        learner: Of every rank.
        directory: Which all ranks see; made if it is not there.

    Raises:
        LearnerError: A rank could not write; on every rank.
    """
    try:
        save(_state(learner), checkpoint_id=directory)
    except (OSError, CheckpointException) as error:
        raise LearnerError(f"{directory}: a sharded checkpoint was not written: {error}") from error


def save_checkpoint_async(learner: Fsdp2Learner, directory: Path) -> SavedState:
    """Like `save_checkpoint`, but returns once the state is copied; all ranks call it, and `wait` later."""
    group = dist.new_group(backend="gloo")
    state = _state(learner)
    return SavedState(async_save(state, checkpoint_id=directory, process_group=group), group)  # type: ignore[arg-type]  # a Future without the newer form of saver


def load_checkpoint(learner: Fsdp2Learner, directory: Path) -> None:
    """Takes on a checkpoint that any layout wrote; all ranks call it.

    A rank whose number the checkpoint does not know keeps its random state. Of one that was converted from a
    Hugging Face directory only the weights are taken, and the optimizer begins anew.

    Raises:
        LearnerError: There is none, or it is of another model.
    """
    described = _described(directory)
    state = learner.sharded_state() | {"updates": torch.tensor(0)}
    _compare(directory, state["model"], described)
    mine = f"{RANDOM}.{dist.get_rank()}"
    if mine in described:
        state[RANDOM] = {str(dist.get_rank()): torch.get_rng_state()}
    there = {name.partition(".")[0] for name in described}  # one that was converted has weights alone
    try:
        load({part: state[part] for part in state if part in there}, checkpoint_id=directory)
    except (OSError, CheckpointException) as error:
        raise LearnerError(f"{directory}: the sharded checkpoint cannot be read: {error}") from error
    learner.take_sharded_state(state)
    if mine in described:
        torch.set_rng_state(state[RANDOM][str(dist.get_rank())])


def full_weights(directory: Path) -> dict[str, Tensor]:
    """The weights of a sharded checkpoint, whole and on the host, by names of the model's state dict.

    Needs no process group; for exports.

    Raises:
        LearnerError: There is none.
    """
    described = _described(directory)
    weights = {
        name.removeprefix("model."): torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in described.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ALONE)
        load({"model": weights}, checkpoint_id=directory, no_dist=True)
    return weights


def save_full_weights(weights: Mapping[str, Tensor], directory: Path) -> None:
    """Writes weights as a checkpoint that any layout loads; it has no optimizer, so only weights.

    Needs no process group; for conversions.

    Args:
        weights: By names of the model's state dict, tied tensors once.
        directory: Made if it is not there.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ALONE)
        save({"model": dict(weights)}, checkpoint_id=directory, no_dist=True)


def _state(learner: Fsdp2Learner) -> dict[str, Any]:
    state = learner.sharded_state()
    state["updates"] = torch.tensor(state["updates"])
    state[RANDOM] = {str(dist.get_rank()): torch.get_rng_state()}
    return state


def _described(directory: Path) -> dict[str, Any]:
    try:
        return dict(FileSystemReader(directory).read_metadata().state_dict_metadata)
    except (OSError, EOFError, ValueError) as error:
        raise LearnerError(f"{directory} holds no sharded checkpoint: {error}") from error


def _compare(directory: Path, own: dict[str, Tensor], described: dict[str, Any]) -> None:
    """Of another model, DCP would name the first tensor alone, or none."""
    there = {
        name.removeprefix("model."): tuple(entry.size)
        for name, entry in described.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    here = {name: tuple(tensor.shape) for name, tensor in own.items()}
    different = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if different:
        name = different[0]
        raise LearnerError(
            f"{directory} is of another model: {len(different)} tensors differ, such as {name}, "
            f"{there.get(name, 'not there')} in the checkpoint and {here.get(name, 'not there')} in the model"
        )
