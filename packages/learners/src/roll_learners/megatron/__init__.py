"""Learners over Megatron-Core: tensor, pipeline, context, expert and data parallel; extra `megatron`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from roll_learners.megatron.architecture import FAMILIES, Architecture, read_architecture
from roll_learners.megatron.layout import MegatronLayout, check_layout

if TYPE_CHECKING:
    from roll_learners.megatron.checkpoint import load_checkpoint, save_checkpoint
    from roll_learners.megatron.groups import check_library, close_groups
    from roll_learners.megatron.learner import MegatronCritic, MegatronLearner, MegatronScorer
    from roll_learners.megatron.weights import DirectoryWeights, ModelWeights, Weights

__all__ = [
    "FAMILIES",
    "Architecture",
    "DirectoryWeights",
    "MegatronCritic",
    "MegatronLayout",
    "MegatronLearner",
    "MegatronScorer",
    "ModelWeights",
    "Weights",
    "check_layout",
    "check_library",
    "close_groups",
    "load_checkpoint",
    "read_architecture",
    "save_checkpoint",
]

_HOMES = {
    "DirectoryWeights": "weights",
    "MegatronCritic": "learner",
    "MegatronLearner": "learner",
    "MegatronScorer": "learner",
    "ModelWeights": "weights",
    "Weights": "weights",
    "check_library": "groups",
    "close_groups": "groups",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
