"""What `ComputeSettings` do to a model of transformers, once when it is taken over and in every pass."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from roll_learners.compute import ComputeSettings
from roll_learners.errors import LearnerError


def prepare_model(model: PreTrainedModel, compute: ComputeSettings) -> None:
    """Sets up checkpointing and compilation, in place; the model stays in evaluation mode.

    Raises:
        LearnerError: The model has no layers that can be checkpointed, or its dtype leaves nothing to cast.
    """
    if compute.autocast and model.dtype != torch.float32:
        raise LearnerError(
            f"learner autocast: the model is {str(model.dtype).removeprefix('torch.')}; allowed is float32, "
            "whose products are then made in bfloat16"
        )
    if compute.gradient_checkpointing:
        _checkpoint_layers(model)
    if compute.compile:
        # transformers leaves the method untyped.
        decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        (model.base_model if decoder is None else decoder).compile(dynamic=True)


def autocast(compute: ComputeSettings, device: str) -> torch.autocast:
    """The context of every pass."""
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=compute.autocast)


def _checkpoint_layers(model: PreTrainedModel) -> None:
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not model.supports_gradient_checkpointing or not layers:
        raise LearnerError(f"gradient_checkpointing: {type(model).__name__} has no layers that support it")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        # A layer checkpoints in training mode alone; what is inside it stays in evaluation mode, without
        # dropout, so a layer with a dropout of its own cannot be switched.
        if float(getattr(layer, "dropout", 0.0) or 0.0):
            raise LearnerError(f"gradient_checkpointing: {type(layer).__name__} has a dropout of its own")
        layer.training = True
