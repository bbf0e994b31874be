"""`roll-launch check`: the resolved configuration, what it comes to, its layout and memory, a dry run."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from roll_hw import (
    HwError,
    MemoryEstimate,
    TransformerShape,
    detect_platform,
    estimate_rollout_memory,
    estimate_training_memory,
    parameter_count,
    transformer_shape,
)

from roll_launch.agentic_plan import AgenticPlan
from roll_launch.check_episodes import agentic_data_rows, agentic_layout_row
from roll_launch.check_side_roles import offline_data_rows, offline_layout_rows, side_layout_rows
from roll_launch.config import (
    Fsdp2LearnerConfig,
    RunConfig,
    StageModel,
    TransformersEngineConfig,
    derive,
    derived_rows,
    dump_config,
)
from roll_launch.dry_run import DRY_STEPS, dry_run
from roll_launch.inputs import load_inputs
from roll_launch.learner_layout import layout_text, per_rank
from roll_launch.models import model_config_mapping
from roll_launch.offline_plan import OfflinePlan
from roll_launch.pipelines import specs
from roll_launch.plan import PolicyPlan, RlvrPlan, SftPlan, StagePlan, plan_stages
from roll_launch.processors import processors
from roll_launch.roles import ModelSpec
from roll_launch.run_directory import RunDirectory

BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2}


def check(config_path: Path, overrides: Sequence[str]) -> int:
    """Prints everything that is known before a run and runs it dry; returns the exit code 0.

    Raises:
        RollLaunchError: Whatever a run would stop for.
    """
    loaded = load_inputs(config_path, overrides, Console(stderr=True))
    config, secrets = loaded.config, loaded.document.secrets
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    plans = plan_stages(config, RunDirectory(root=config.directory.absolute() / "checked"))
    console.print("[bold]resolved configuration[/bold]")
    console.print(dump_config(config, secrets=secrets), markup=False)
    sources = _weight_sources(plans)
    for plan, derived in zip(plans, derive(config), strict=True):
        _print_table(
            console,
            f"stage {derived.stage} ({derived.pipeline})",
            [*derived_rows(derived), *_data_rows(plan)],
        )
        _print_table(console, f"layout of {derived.stage}", _layout_rows(config, plan))
        _print_table(
            console, f"memory of {derived.stage}, estimated", _memory_rows(plan, sources[derived.stage])
        )
    began = time.monotonic()
    results = asyncio.run(dry_run(config, plans))
    for name, result in results.items():
        console.print(
            f"dry run of {name}: {result.steps} of {DRY_STEPS} steps, {result.samples} samples, no fault",
            markup=False,
        )
    console.print(f"ready; the dry run took {time.monotonic() - began:.1f} s", markup=False)
    return 0


def _print_table(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    console.print(table)
    console.print()


def _data_rows(plan: StagePlan) -> list[tuple[str, str]]:
    if isinstance(plan, OfflinePlan):
        return offline_data_rows(plan)
    if isinstance(plan, SftPlan):
        epochs = plan.stage.steps * plan.stage.batch_size / len(plan.samples)
        return [
            (
                "demonstrations",
                f"{len(plan.samples):,} ({plan.dropped:,} too long, {plan.empty:,} empty), "
                f"{epochs:.2f} epochs",
            )
        ]
    if isinstance(plan, AgenticPlan):
        return agentic_data_rows(plan)
    epochs = plan.stage.steps * plan.stage.rollout.prompts_per_step / len(plan.prompts.prompts)
    rows = [
        ("prompts", f"{len(plan.prompts.prompts):,} ({plan.prompts.dropped:,} too long), {epochs:.2f} epochs")
    ]
    if plan.heldout is not None:
        rows.append(
            ("held-out prompts", f"{len(plan.heldout.prompts):,} ({plan.heldout.dropped:,} too long)")
        )
    return rows


def _layout_rows(config: RunConfig, plan: StagePlan) -> list[tuple[str, str]]:
    """Each role: how many processes, on which device, with how many threads."""
    here, stage = processors(), plan.stage
    where = "Ray actor" if config.runtime.kind == "ray" else "thread of this process"
    rows = [("machine", f"{here} processors, platform {detect_platform().name}")]
    if isinstance(plan, SftPlan):
        trainer = specs.supervised_trainer(plan, processors=here)
    elif isinstance(plan, OfflinePlan):
        return [*rows, *offline_layout_rows(plan, where, processors=here)]
    else:
        trainer = specs.policy_trainer(plan, processors=here)
    learner = stage.learner
    ranks = learner.ranks if isinstance(learner, Fsdp2LearnerConfig) else 1
    many = f"{where}s" if ranks > 1 else where
    rows.append(("trainer", f"{ranks} {many} on {learner.device}, {trainer.threads} threads"))
    if isinstance(learner, Fsdp2LearnerConfig):
        rows.append(("trainer's layout", layout_text(learner.layout())))
    if isinstance(plan, RlvrPlan | AgenticPlan):
        rollout = plan.stage.rollout
        if plan.stage.critics is not None:
            own = plan.stage.critics.placement == "own"
            told = f"{where}(s)" if own else "in the trainer's process"
            rows.append(("critics", f"{plan.stage.critics.count} {told}"))
        if isinstance(plan, RlvrPlan):
            rows += side_layout_rows(plan, where, processors=here)
        actor = specs.actor(plan, processors=here)
        engine = rollout.engine
        device = f" on {engine.device}" if isinstance(engine, TransformersEngineConfig) else ""
        placed = f"{rollout.replicas} {where}(s){device}, {actor.threads} threads each"
        rows.append(("actors", f"{placed}; {rollout.engine.kind} engine, batch {rollout.engine.max_batch}"))
        if isinstance(plan, AgenticPlan):
            return [*rows, agentic_layout_row(plan, where)]
        rewards = plan.stage.rewards
        grader = "no grader" if rewards.grader is None else f"grader {rewards.grader.name}"
        rows.append(("reward workers", f"{rewards.workers} {where}(s), {grader}"))
    return rows


def _weight_sources(plans: Sequence[StagePlan]) -> dict[str, ModelSpec]:
    """Of each stage the model that its weights come from: that of an earlier stage is not there yet."""
    sources: dict[str, ModelSpec] = {}
    for plan in plans:
        model = plan.stage.model
        sources[plan.stage.name] = sources[model.stage] if isinstance(model, StageModel) else plan.model
    return sources


def _memory_rows(plan: StagePlan, source: ModelSpec) -> list[tuple[str, str]]:
    """GiB of each role by part, from the configuration of the model alone."""
    try:
        shape = transformer_shape(model_config_mapping(source))
    except HwError as error:
        return [("model", f"not estimated: {error}")]
    width = BYTES_PER_PARAMETER[plan.model.dtype]
    training = estimate_training_memory(
        shape, bytes_per_parameter=width, micro_batch_tokens=plan.stage.learner.micro_batch_tokens
    )
    rows = [("parameters", f"{parameter_count(shape):,}")]
    learner = plan.stage.learner
    if isinstance(learner, Fsdp2LearnerConfig):
        rows.append(("each rank of the trainer", _memory(per_rank(training, learner.layout()))))
    else:
        rows.append(("trainer", _memory(training)))
    if isinstance(plan, RlvrPlan | AgenticPlan):
        if plan.algorithm.needs_reference:
            gib = parameter_count(shape) * width / 1024**3
            rows.append(("reference, with the trainer", f"{gib:.3f} GiB (weights {gib:.3f})"))
        rows.append(("each actor", _memory(_rollout_memory(plan, shape, width))))
    return rows


def _rollout_memory(plan: PolicyPlan, shape: TransformerShape, width: int) -> MemoryEstimate:
    rollout = plan.stage.rollout
    return estimate_rollout_memory(
        shape,
        bytes_per_parameter=width,
        max_batch=rollout.engine.max_batch,
        max_context=specs.actor(plan, processors=1).max_context,
    )


def _memory(estimate: MemoryEstimate) -> str:
    parts = ", ".join(f"{name} {gib:.3f}" for name, gib in estimate.parts.items())
    return f"{estimate.total_gib:.3f} GiB ({parts})"
