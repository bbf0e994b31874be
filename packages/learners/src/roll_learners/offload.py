"""Parameters and optimizer state moved to host memory between phases, for devices shared with an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def move_optimizer(optimizer: torch.optim.Optimizer, device: str) -> int:
    """Moves the state of every parameter; returns the bytes that changed place."""
    moved = 0
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.device != torch.device(device):
                state[name] = value.to(device)
                moved += value.nbytes
    return moved


def move_parameters(parameters: Sequence[torch.Tensor], device: str) -> int:
    """Moves values and gradients in place, tied ones once; returns the bytes that changed place."""
    moved = 0
    for parameter in {id(each): each for each in parameters}.values():
        if parameter.device == torch.device(device):
            continue
        moved += parameter.nbytes
        parameter.data = parameter.data.to(device)
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.data.to(device)
    return moved
