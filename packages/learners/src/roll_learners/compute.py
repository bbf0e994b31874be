"""How a learner keeps and runs its model. Torch-free, for checking configurations."""

from __future__ import annotations

from dataclasses import dataclass

from roll_learners.errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """Precision, memory and layout; none of it changes what is learned but for rounding.

    ComputeSettings(packing=True, gradient_checkpointing=True)

    Attributes:
        packing: Samples are laid back to back in one row, without padding. Refused for models whose layers
            would carry state from one sample into the next.
        master_weights: Of a model in half precision the optimizer keeps and updates float32 copies, into
            which gradients are summed. Without them an update smaller than half a unit in the last place
            of a weight is lost.
        autocast: A float32 model multiplies in bfloat16; weights, sums and losses stay float32.
        gradient_checkpointing: Layers keep their inputs alone and are computed again in the backward.
        compile: The decoder goes through `torch.compile`, with dynamic shapes.
    """

    packing: bool = False
    master_weights: bool = True
    autocast: bool = False
    gradient_checkpointing: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if self.packing and self.compile:
            raise LearnerError(
                "learner packing and compile are both set, but packed rows have other shapes each time: "
                "allowed is one of them"
            )
