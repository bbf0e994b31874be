"""The whole configuration of a run."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import CallablePath, Seconds
from roll_launch.config.schema.model import StageModel
from roll_launch.config.schema.stages import StageConfig
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
        directories = [preparation.directory for preparation in self.prepare]
        for index, directory in enumerate(directories):
            if directory in directories[:index]:
                yield Finding(
                    path=("prepare", index, "directory"),
                    message="another preparation writes there",
                    got=str(directory),
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
        """Models of stages that do not come earlier."""
        names = [stage.name for stage in self.stages]
        for index, stage in enumerate(self.stages):
            model = stage.model
            if not isinstance(model, StageModel) or model.stage in names[:index]:
                continue
            earlier = names[:index]
            near = difflib.get_close_matches(model.stage, earlier, n=1)
            later = model.stage in names[index:]
            yield Finding(
                path=("stages", index, "model", "stage"),
                message="not earlier than this stage" if later else "no stage of this name comes earlier",
                got=model.stage,
                allowed=", ".join(earlier) or "none, this is the first stage",
                hint=f"did you mean {near[0]}?" if near and not later else None,
            )
