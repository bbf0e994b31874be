"""The norm of a gradient whose parts are on several meshes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from roll_learners.fsdp2.sharding import local


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm over all of them, the same to the last bit on every rank; every rank calls it.

    Args:
        gradients: Any shapes, in the same order on every rank; an entry that several ranks hold counts once.
    """
    sums: dict[tuple[DeviceMesh | None, tuple[int, ...]], Tensor] = {}
    for gradient in gradients:
        mesh: DeviceMesh | None = None
        dimensions: tuple[int, ...] = ()
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            dimensions = tuple(i for i, each in enumerate(gradient.placements) if not each.is_replicate())
        square = torch.linalg.vector_norm(local(gradient).detach()).double() ** 2
        sums[mesh, dimensions] = sums[mesh, dimensions] + square if (mesh, dimensions) in sums else square
    total = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for (held, cut), square in sums.items():
        if held is not None:
            for dimension in cut:
                dist.all_reduce(square, group=held.get_group(dimension))
        total = total + square
    # Ranks that hold copies may differ in rounding; whether a step is taken they must agree on.
    dist.broadcast(total, 0)
    return total.sqrt().to(gradients[0].dtype)
