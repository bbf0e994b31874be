"""How many processes share a model, and in which way: torch-free data, checked before any process starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks in row-major order of (replicas, shards of the parameters, tensor).

    Layout(ranks=8, replicas=2, tensor=2): two replicas, each in 2 shards of its parameters, each of which is
    split over 2 ranks; 4 ranks compute different samples.

    Attributes:
        ranks: Processes in all.
        replicas: Copies of the model, between which gradients are summed (HSDP); 1 shards over all ranks.
        context: Ranks that divide each sequence (Ulysses). They hold different shards of the parameters.
        tensor: Ranks that divide each matrix product.
        expert: Ranks that divide the experts of each sparse layer, among those that hold the shards.

    Raises:
        LearnerError: A size below 1, or sizes whose product does not divide the ranks.
    """

    ranks: int = 1
    replicas: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "replicas", "context", "tensor", "expert"):
            value = getattr(self, name)
            if value < 1:
                raise LearnerError(f"fsdp2 layout: {name} is {value}: at least 1")
        product = self.replicas * self.context * self.tensor
        if self.ranks % product:
            raise LearnerError(
                f"fsdp2 layout: {self.ranks} ranks are not a multiple of replicas {self.replicas} x context "
                f"{self.context} x tensor {self.tensor} = {product}"
            )
        if self.expert == 1:
            return
        for name, value in (("replicas", self.replicas), ("context", self.context), ("tensor", self.tensor)):
            if value > 1:
                raise LearnerError(
                    f"fsdp2 layout: expert {self.expert} together with {name} {value}: allowed is {name} 1"
                )
        if self.shards % self.expert:
            raise LearnerError(
                f"fsdp2 layout: expert {self.expert} does not divide the {self.shards} ranks of the shards"
            )

    @property
    def shards(self) -> int:
        """Parts into which the parameters of one replica are cut, besides tensor."""
        return self.ranks // (self.replicas * self.tensor)

    @property
    def data(self) -> int:
        """Ranks, or groups of them, that compute different samples."""
        return self.ranks // (self.context * self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a model is held and computed.

    Sharding(layout=Layout(ranks=2), precision="bfloat16")

    Attributes:
        layout: Who holds what.
        precision: Of the forward and backward pass; None is the model's own dtype, in which parameters and
            optimizer stay in any case.
        reduce_precision: Of the sums of gradients over ranks.
        reshard_after_forward: Let go of a layer's gathered parameters after its forward pass, and gather them
            again for the backward pass.
        offload: Keep parameters, gradients and optimizer on the host; needs an accelerator.
        recompute: Keep only the input of each layer and compute it again in the backward pass.
        packing: Samples are laid back to back in a pass, without padding; not with context.
    """

    layout: Layout = Layout()
    precision: Precision | None = None
    reduce_precision: Precision = "float32"
    reshard_after_forward: bool = True
    offload: bool = False
    recompute: bool = False
    packing: bool = False

    def __post_init__(self) -> None:
        for name, value in (("precision", self.precision), ("reduce_precision", self.reduce_precision)):
            if value not in (*get_args(Precision), *((None,) if name == "precision" else ())):
                raise LearnerError(f"fsdp2 {name} is {value!r}: allowed are {', '.join(get_args(Precision))}")
        if self.packing and self.layout.context > 1:
            raise LearnerError(f"fsdp2 packing with context {self.layout.context}: allowed is one of them")


def check_sizes(layout: Layout, config: Mapping[str, object]) -> None:
    """Compares a layout with a model, with the numbers of both.

    Args:
        layout: Of the learner.
        config: As in the model's config.json.

    Raises:
        LearnerError: Heads, widths or experts that do not divide, or layers that a layout cannot run; names
            all of them.
    """
    problems = [*_tensor_problems(layout, config), *_context_problems(layout, config)]
    problems += _expert_problems(layout, config)
    if problems:
        family = config.get("model_type", "model")
        raise LearnerError(f"fsdp2 layout does not fit this {family}: " + "; ".join(problems))


def _number(config: Mapping[str, object], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _tensor_problems(layout: Layout, config: Mapping[str, object]) -> Iterator[str]:
    if layout.tensor == 1:
        return
    heads = _number(config, "num_attention_heads")
    for name, value in (
        ("num_attention_heads", heads),
        ("num_key_value_heads", _number(config, "num_key_value_heads") or heads),
        ("intermediate_size", _number(config, "intermediate_size")),
        ("moe_intermediate_size", _number(config, "moe_intermediate_size")),
    ):
        if value is not None and value % layout.tensor:
            yield f"{name} {value} is not a multiple of tensor {layout.tensor}"


def _context_problems(layout: Layout, config: Mapping[str, object]) -> Iterator[str]:
    if layout.context == 1:
        return
    heads = _number(config, "num_attention_heads")
    if heads is not None and heads % (layout.context * layout.tensor):
        yield (
            f"num_attention_heads {heads} is not a multiple of context {layout.context} x "
            f"tensor {layout.tensor}"
        )
    layers = config.get("layer_types")
    kinds = set(layers) if isinstance(layers, list | tuple) else set()
    if others := sorted(map(str, kinds - {"full_attention"})):
        yield f"context {layout.context} needs full attention in every layer, but has {', '.join(others)}"


def _expert_problems(layout: Layout, config: Mapping[str, object]) -> Iterator[str]:
    if layout.expert == 1:
        return
    experts = _number(config, "num_experts", "num_local_experts", "n_routed_experts")
    if experts is None:
        yield f"expert {layout.expert}, but the model has no experts"
    elif experts % layout.expert:
        yield f"num_experts {experts} is not a multiple of expert {layout.expert}"
