"""A learner of many processes on PyTorch's FSDP2; torch is imported when a name needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from roll_learners.fsdp2.layout import Layout, Sharding, check_sizes

if TYPE_CHECKING:
    from roll_learners.fsdp2.checkpoint import (
        SavedState,
        full_weights,
        load_checkpoint,
        save_checkpoint,
        save_checkpoint_async,
        save_full_weights,
    )
    from roll_learners.fsdp2.learner import Fsdp2Learner
    from roll_learners.fsdp2.scorer import Fsdp2Scorer
    from roll_learners.fsdp2.sharding import check_family

__all__ = [
    "Fsdp2Learner",
    "Fsdp2Scorer",
    "Layout",
    "SavedState",
    "Sharding",
    "check_family",
    "check_sizes",
    "full_weights",
    "load_checkpoint",
    "save_checkpoint",
    "save_checkpoint_async",
    "save_full_weights",
]

_MODULES = {
    "checkpoint": (
        "SavedState full_weights load_checkpoint save_checkpoint save_checkpoint_async save_full_weights"
    ),
    "learner": "Fsdp2Learner",
    "scorer": "Fsdp2Scorer",
    "sharding": "check_family",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'roll_learners.fsdp2' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll_learners.fsdp2.{_LAZY[name]}"), name)
