"""The whole configuration of a run."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.nodes import KeyPath
from roll_launch.config.schema.agentic import AgenticStage
from roll_launch.config.schema.distillation import DistillationStage
from roll_launch.config.schema.kinds import CallablePath, Seconds
from roll_launch.config.schema.model import StageModel
from roll_launch.config.schema.preference import PreferenceStage
from roll_launch.config.schema.rewards import RewardsConfig
from roll_launch.config.schema.stages import RlvrStage, StageConfig
from roll_launch.config.schema.weight_sync import sync_findings
from roll_launch.config.section import Finding, Section


class LocalRuntimeConfig(Section):
    """Every role in this process."""

    kind: Literal["local"] = Field(description="No Ray; for laptops and debuggers.")


class RayRuntimeConfig(Section):
    """Every role in a Ray actor."""

    kind: Literal["ray"] = Field(description="Ray.")
    address: str | None = Field(
        default=None, description="Of a running cluster, `auto` or host:port; null starts a private one."
    )
    start_deadline_s: Seconds = Field(default=120.0, description="Seconds for the cluster to start.")


RuntimeConfig: TypeAlias = Annotated[LocalRuntimeConfig | RayRuntimeConfig, Field(discriminator="kind")]


class PreparationConfig(Section):
    """A function that writes files before the stages run, once for the same arguments."""

    callable: CallablePath = Field(
        description="`package.module:function`, called with the directory and the arguments."
    )
    directory: Path = Field(description="Where it writes.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")


class TrackingConfig(Section):
    """What is recorded besides metrics.jsonl, which always is."""

    tensorboard: bool = Field(default=True, description="TensorBoard event files.")
    rollouts: bool = Field(default=True, description="Every prompt, response and score, as JSON lines.")


class RunConfig(Section):
    """A run: preparations, then stages in order."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="Letters, digits, `.`, `_` and `-`.",
        json_schema_extra={"also": ["exp_name", "experiment_name", "run_name"]},
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of everything random in the run.")
    directory: Path = Field(
        default_factory=lambda data: Path("runs") / data["name"],
        description="Each run makes a directory in it; runs/NAME if left out.",
        json_schema_extra={"also": ["output_dir", "default_local_dir", "save_path"]},
    )
    runtime: RuntimeConfig = Field(default=LocalRuntimeConfig(kind="local"), description="Where roles run.")
    prepare: tuple[PreparationConfig, ...] = Field(default=(), description="What is run before the stages.")
    tracking: TrackingConfig = Field(default=TrackingConfig(), description="What is recorded.")
    stages: tuple[StageConfig, ...] = Field(min_length=1, description="What the run does, in order.")

    def findings(self) -> Iterator[Finding]:
        yield from self._name_findings()
        yield from self._model_findings()
        yield from self._ranks_findings()
        yield from sync_findings(self.runtime.kind, self.stages)
        directories = [preparation.directory for preparation in self.prepare]
        for index, directory in enumerate(directories):
            if directory in directories[:index]:
                yield Finding(
                    path=("prepare", index, "directory"),
                    message="another preparation writes there",
                    got=str(directory),
                )

    def _ranks_findings(self) -> Iterator[Finding]:
        """Learners of many processes need somebody who starts these."""
        for index, stage in enumerate(self.stages):
            if self.runtime.kind == "local" and stage.learner.backend == "fsdp2":
                yield Finding(
                    path=("stages", index, "learner", "backend"),
                    message="runtime local keeps every role in this process",
                    got="fsdp2",
                    allowed="local; or runtime ray",
                )

    def _name_findings(self) -> Iterator[Finding]:
        names = [stage.name for stage in self.stages]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Finding(
                    path=("stages", index, "name"),
                    message=f"stage {names.index(name) + 1} has this name already; each stage needs its own",
                    got=name,
                )

    def _model_findings(self) -> Iterator[Finding]:
        """Models of stages that do not come earlier, or that are of another kind."""
        for index, stage in enumerate(self.stages):
            for key, model, scores in _models_of(stage):
                if isinstance(model, StageModel):
                    path = ("stages", index, *key, "model", "stage")
                    yield from self._stage_findings(model.stage, index, path, scores=scores)

    def _stage_findings(self, named: str, index: int, path: KeyPath, *, scores: bool) -> Iterator[Finding]:
        """What is wrong with naming a stage as the source of a model that samples, or that scores."""
        names = [stage.name for stage in self.stages]
        earlier = names[:index]
        if named not in earlier:
            near = difflib.get_close_matches(named, earlier, n=1)
            later = named in names[index:]
            yield Finding(
                path=path,
                message="not earlier than this stage" if later else "no stage of this name comes earlier",
                got=named,
                allowed=", ".join(earlier) or "none, this is the first stage",
                hint=f"did you mean {near[0]}?" if near and not later else None,
            )
            return
        scoring = {
            stage.name
            for stage in self.stages
            if isinstance(stage, PreferenceStage) and stage.objective.preset == "reward_model"
        }
        if scores != (named in scoring):
            allowed = [name for name in earlier if (name in scoring) == scores]
            yield Finding(
                path=path,
                message="trains no reward model" if scores else "trains a reward model: it samples nothing",
                got=named,
                allowed=", ".join(allowed) or "none",
            )


def _models_of(stage: StageConfig) -> Iterator[tuple[KeyPath, object, bool]]:
    """The models of a stage: the keys before `model`, the model, and whether it scores responses."""
    yield (), stage.model, False
    rewards: tuple[KeyPath, RewardsConfig | None] = ((), None)
    if isinstance(stage, RlvrStage | AgenticStage) and stage.critics is not None:
        yield ("critics",), stage.critics.model, False
    if isinstance(stage, RlvrStage):
        rewards = ("rewards",), stage.rewards
    elif isinstance(stage, PreferenceStage | DistillationStage):
        sampled = stage.evaluation.generation if stage.evaluation is not None else None
        if sampled is not None:
            rewards = ("evaluation", "generation", "rewards"), sampled.rewards
    if isinstance(stage, RlvrStage | DistillationStage):
        for index, teacher in enumerate(stage.teachers):
            yield ("teachers", index), teacher.model, False
    if rewards[1] is not None:
        for index, each in enumerate(rewards[1].models):
            yield (*rewards[0], "models", index), each.model, True
