"""How a model is spread over processes, and whether its sizes allow it. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name
from roll_learners.megatron.architecture import Architecture

Recompute = Literal["none", "attention", "layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLayout:
    """Sizes of the groups of processes; what is left of all processes is data parallel.

    MegatronLayout(tensor=2, pipeline=2) on 8 processes has 2 data-parallel replicas of 4 processes each.

    Attributes:
        tensor: Processes that share every matrix.
        pipeline: Stages that the layers are dealt to.
        virtual_pipeline: Chunks of layers a stage, which fill the gaps of the pipeline; above 1 only with
            two stages or more.
        context: Processes that share the tokens of every row.
        expert: Processes that the experts of a mixture are dealt to, among those that are data parallel.
        sequence_parallel: Between matrices, tensor-parallel processes hold a share of the tokens each.
        distributed_optimizer: Data-parallel processes hold a share of the optimizer's state each.
        recompute: What is computed again in the backward pass instead of being kept: nothing, the attention
            scores, or whole layers.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = True
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "virtual_pipeline", "context", "expert"):
            size = getattr(self, name)
            if size < 1:
                raise LearnerError(f"layout.{name} is {size}: at least 1")
        if self.recompute not in get_args(Recompute):
            raise unknown_name("layout.recompute", self.recompute, get_args(Recompute))
        if self.virtual_pipeline > 1 and self.pipeline < 2:
            raise LearnerError(
                f"layout.virtual_pipeline is {self.virtual_pipeline} with pipeline {self.pipeline}: allowed "
                "is 1, or a pipeline of at least 2"
            )
        if self.sequence_parallel and self.tensor < 2:
            raise LearnerError(
                f"layout.sequence_parallel is true with tensor {self.tensor}: it needs at least 2"
            )

    @property
    def model_size(self) -> int:
        """Processes that hold one replica of the model."""
        return self.tensor * self.pipeline * self.context

    def data_size(self, processes: int) -> int:
        """Data-parallel replicas among so many processes.

        Raises:
            LearnerError: The sizes do not divide the number of processes.
        """
        if processes < 1 or processes % self.model_size:
            raise LearnerError(
                f"layout: tensor {self.tensor} x pipeline {self.pipeline} x context {self.context} = "
                f"{self.model_size} processes a replica, but there are {processes}: allowed are multiples "
                f"of {self.model_size}"
            )
        return processes // self.model_size

    @property
    def row_multiple(self) -> int:
        """Rows of tokens are padded to a multiple of this length."""
        shares = self.tensor if self.sequence_parallel else 1
        return shares * (2 * self.context if self.context > 1 else 1)

    def padded_vocabulary(self, vocabulary: int) -> int:
        """Rows of the embedding, so that every tensor-parallel process has as many."""
        return -(-vocabulary // self.tensor) * self.tensor


def check_layout(layout: MegatronLayout, model: Architecture, *, processes: int) -> int:
    """The number of data-parallel replicas, for a model that can be spread like this.

    Args:
        layout: Sizes of the groups.
        model: Of which `roll_learners.megatron.read_architecture` gives the sizes.
        processes: All that take part.

    Raises:
        LearnerError: A size does not divide another; the message has all numbers that do not fit.
    """
    data = layout.data_size(processes)
    problems = list(_misfits(layout, model, data))
    if problems:
        raise LearnerError(f"layout does not fit {model.family}: " + "; ".join(problems))
    return data


def _misfits(layout: MegatronLayout, model: Architecture, data: int) -> Iterator[str]:
    tensor, chunks = layout.tensor, layout.pipeline * layout.virtual_pipeline
    widths = {
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.groups,
        "intermediate_size": model.intermediate,
        "moe_intermediate_size": model.expert_intermediate,
        "hidden_size": model.hidden if layout.sequence_parallel else 0,
    }
    for name, width in widths.items():
        if width % tensor:
            yield f"{name} {width} is no multiple of tensor {tensor}"
    if model.vocabulary <= layout.padded_vocabulary(model.vocabulary) // tensor * (tensor - 1):
        yield f"vocab_size {model.vocabulary} leaves one of tensor {tensor} processes without a token"
    if model.layers % chunks:
        yield (
            f"num_hidden_layers {model.layers} is no multiple of pipeline {layout.pipeline} x "
            f"virtual_pipeline {layout.virtual_pipeline} = {chunks}"
        )
    if layout.expert > 1 and not model.experts:
        yield f"expert is {layout.expert}, but the model has no experts: allowed is 1"
    elif model.experts % layout.expert:
        yield f"num_experts {model.experts} is no multiple of expert {layout.expert}"
    if data * layout.context % layout.expert:
        yield (
            f"expert {layout.expert} does not divide the {data * layout.context} processes that are data or "
            "context parallel"
        )
    if model.experts and tensor > 1 and not layout.sequence_parallel:
        yield f"experts with tensor {tensor} need sequence_parallel, which is false"
