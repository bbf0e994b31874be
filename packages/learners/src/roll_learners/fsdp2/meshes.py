"""The ranks of a layout as device meshes: who shards parameters, divides matrices, computes which samples."""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from roll_learners.errors import LearnerError
from roll_learners.fsdp2.layout import Layout


class Meshes(NamedTuple):
    """Attributes:
    layout: What they come from.
    parameters: What `fully_shard` takes: ("shards",), or ("replicas", "shards").
    tensor: ("tensor",), or None.
    experts: ("experts",), or None.
    expert_shards: ("expert_shards",) of the ranks that hold the same experts, or None.
    data: Group of the ranks that compute a batch together; each has another share.
    context: Group of the ranks that divide sequences.
    share: This rank's share of a batch, from 0 to layout.data - 1.
    """

    layout: Layout
    parameters: DeviceMesh
    tensor: DeviceMesh | None
    experts: DeviceMesh | None
    expert_shards: DeviceMesh | None
    data: dist.ProcessGroup
    context: dist.ProcessGroup
    share: int


def make_meshes(layout: Layout, device_type: str) -> Meshes:
    """The meshes of a layout; every process of the default group calls it, in the same order.

    Args:
        layout: Of as many ranks as there are processes.
        device_type: Such as "cpu" or "cuda".

    Raises:
        LearnerError: There is no process group, or it has another size.
    """
    if not dist.is_initialized():
        raise LearnerError(
            "fsdp2 needs a process group: call torch.distributed.init_process_group first (torchrun sets "
            "what it reads)"
        )
    if dist.get_world_size() != layout.ranks:
        raise LearnerError(
            f"fsdp2 layout is of {layout.ranks} ranks, but the process group has {dist.get_world_size()}"
        )
    names = ("replicas", "shards", "tensor")
    root = init_device_mesh(
        device_type, (layout.replicas, layout.shards, layout.tensor), mesh_dim_names=names
    )
    samples = init_device_mesh(
        device_type,
        (layout.data, layout.context, layout.tensor),
        mesh_dim_names=("data", "context", "tensor"),
    )
    experts = None
    if layout.expert > 1:
        experts = init_device_mesh(
            device_type,
            (layout.shards // layout.expert, layout.expert),
            mesh_dim_names=("expert_shards", "experts"),
        )
    return Meshes(
        layout=layout,
        parameters=root["replicas", "shards"] if layout.replicas > 1 else root["shards"],
        tensor=root["tensor"] if layout.tensor > 1 else None,
        experts=None if experts is None else experts["experts"],
        expert_shards=None if experts is None else experts["expert_shards"],
        data=samples.get_group("data"),
        context=samples.get_group("context"),
        share=samples.get_local_rank("data"),
    )
