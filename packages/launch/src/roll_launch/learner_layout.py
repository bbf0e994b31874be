"""What the layout of a learner on several ranks comes to; `check` says it, and what cannot be is refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from roll_hw import MemoryEstimate
from roll_learners.errors import LearnerError
from roll_learners.fsdp2.layout import Layout, check_sizes

from roll_launch.config import Fsdp2LearnerConfig, LearnerConfig, ModelConfig, StageModel
from roll_launch.errors import RollLaunchError
from roll_launch.models import model_config_mapping
from roll_launch.roles import ModelSpec

SPLIT = ("weights", "gradients", "optimizer")
"""Parts of an estimate of memory that are cut into shards; the others are of one rank's passes."""


class LayoutError(RollLaunchError):
    """A stage's model cannot be laid out over the ranks of its learner."""


class StageOnRanks(Protocol):
    """A stage; its learner may be of any back-end."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> ModelConfig: ...

    @property
    def learner(self) -> LearnerConfig: ...


def weight_sources(stages: Iterable[tuple[StageOnRanks, ModelSpec]]) -> dict[str, ModelSpec]:
    """Of each stage the model that its weights come from: that of an earlier stage is not there yet."""
    sources: dict[str, ModelSpec] = {}
    for stage, model in stages:
        sources[stage.name] = sources[stage.model.stage] if isinstance(stage.model, StageModel) else model
    return sources


def refuse_unfit_layouts(stages: Sequence[tuple[StageOnRanks, ModelSpec]]) -> None:
    """Compares each layout with the model's configuration.

    Raises:
        LayoutError: Sizes do not divide; names all, with the numbers.
    """
    sources = weight_sources(stages)
    for stage, _ in stages:
        if isinstance(stage.learner, Fsdp2LearnerConfig):
            try:
                check_sizes(stage.learner.layout(), _mapping(sources[stage.name]))
            except LearnerError as error:
                raise LayoutError(f"stage {stage.name}: {error}") from error


def layout_text(layout: Layout) -> str:
    """`4 ranks: 2 replicas x 2 shards; 4 shares of a batch`."""
    parts = [f"{layout.shards} shard{'s' if layout.shards > 1 else ''}"]
    if layout.replicas > 1:
        parts.insert(0, f"{layout.replicas} replicas")
    if layout.tensor > 1:
        parts.append(f"tensor {layout.tensor}")
    more = [
        f"{name} {size} within the shards"
        for name, size in (("context", layout.context), ("expert", layout.expert))
        if size > 1
    ]
    return (
        f"{layout.ranks} ranks: {'; '.join([' x '.join(parts), *more, f'{layout.data} shares of a batch'])}"
    )


def per_rank(estimate: MemoryEstimate, layout: Layout) -> MemoryEstimate:
    """What one rank holds of an estimate for one process; gathered layers are not counted."""
    parts = layout.shards * layout.tensor
    return MemoryEstimate(
        parts={
            name: gib / parts if name in SPLIT else gib / layout.context
            for name, gib in estimate.parts.items()
        }
    )


def _mapping(source: ModelSpec) -> Mapping[str, object]:
    mapping = model_config_mapping(source)
    text = mapping.get("text_config")
    return text if isinstance(text, Mapping) else mapping
