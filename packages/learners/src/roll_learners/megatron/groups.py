"""The groups of processes that Megatron-Core keeps for a layout, one layout a process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from roll_learners.errors import LearnerError
from roll_learners.megatron.architecture import Architecture
from roll_learners.megatron.layout import MegatronLayout, check_layout

Value = TypeVar("Value")


def check_library() -> None:
    """Raises LearnerError if Megatron-Core is not installed."""
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise LearnerError(
            "megatron: the library megatron-core is not installed: pip install 'roll-learners[megatron]'"
        )


@dataclass(frozen=True, slots=True)
class Groups:
    """Where this process stands.

    Attributes:
        layout: What the groups were made for.
        data: Data-parallel replicas.
        data_rank: Of this process.
        everyone: A group of all processes for small objects, on the CPU.
        device: Where tensors go.
    """

    layout: MegatronLayout
    data: int
    data_rank: int
    everyone: dist.ProcessGroup
    device: str

    def gathered(self, own: Value) -> list[Value]:
        """What every process gives, in the order of ranks; the same list in all."""
        if dist.get_world_size() == 1:
            return [own]
        given: list[Value | None] = [None] * dist.get_world_size()
        dist.all_gather_object(given, own, group=self.everyone)
        return given  # type: ignore[return-value]  # none is None now

    def first_of(self, own: Value | None) -> Value:
        """The value of the first process that has one, in all."""
        return next(value for value in self.gathered(own) if value is not None)


_groups: list[Groups] = []


def make_groups(layout: MegatronLayout, model: Architecture, *, device: str) -> Groups:
    """The groups of this process; made at the first call, which all processes make together.

    torch.distributed has been initialised before. Further learners of the process share the groups.

    Args:
        layout: Sizes of the groups.
        model: Whose sizes the layout must fit.
        device: A torch device: "cuda" for the current one.

    Raises:
        LearnerError: The library or torch.distributed is missing, the layout does not fit the model or the
            number of processes, the process has groups of another layout, or there is no CUDA device.
    """
    check_library()
    if not dist.is_initialized():
        raise LearnerError(
            "megatron: torch.distributed is not initialised: start the program with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    data = check_layout(layout, model, processes=dist.get_world_size())
    _check_device(device)
    if _groups:
        if _sizes(_groups[0].layout) != _sizes(layout):
            raise LearnerError(
                f"megatron: this process has groups of {_groups[0].layout}; got {layout}: models of a "
                "process share one layout"
            )
        return _groups[0]
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=_chunks(layout),
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.tensor,
    )
    _seed_library()
    _groups.append(
        Groups(
            layout=layout,
            data=data,
            data_rank=parallel_state.get_data_parallel_rank(),
            everyone=dist.new_group(backend="gloo"),  # type: ignore[arg-type]  # all are members
            device=device,
        )
    )
    return _groups[0]


def close_groups() -> None:
    """Ends what `make_groups` made, so that another layout can follow; torch.distributed stays as it is."""
    from megatron.core import parallel_state

    for groups in _groups:
        dist.destroy_process_group(groups.everyone)
    _groups.clear()
    parallel_state.destroy_model_parallel()


def library_version() -> str:
    """Of Megatron-Core."""
    return importlib.metadata.version("megatron-core")


def _seed_library() -> None:
    """Gives the library the random states that it asks for, although nothing here is drawn from them."""
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    before = torch.cuda.get_rng_state()
    model_parallel_cuda_manual_seed(0)
    torch.cuda.set_rng_state(before)


def _chunks(layout: MegatronLayout) -> int | None:
    return layout.virtual_pipeline if layout.virtual_pipeline > 1 else None


def _sizes(layout: MegatronLayout) -> Sequence[int]:
    return (layout.tensor, layout.pipeline, layout.virtual_pipeline, layout.context, layout.expert)


def _check_device(device: str) -> None:
    """Megatron-Core asks CUDA for the current device whatever it runs on."""
    try:
        torch.cuda.current_device()
    except (RuntimeError, AssertionError) as error:
        raise LearnerError(
            f"megatron: learner device is {device}, and CUDA has none: Megatron-Core runs on CUDA devices"
        ) from error
