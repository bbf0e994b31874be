"""What a run directory holds of the stages that have run: read by a resume, before anything starts."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from roll_launch import checkpoint_store as store
from roll_launch.config import ConfigError, RunConfig, dump_config, leaves, load_text
from roll_launch.errors import RollLaunchError
from roll_launch.plan import StagePlan
from roll_launch.progress import CONFIG, PROGRESS, StageProgress
from roll_launch.run_directory import RunDirectory

logger = logging.getLogger(__name__)

FREE = (
    "runtime", "runtime.*", "tracking.*", "directory",
    "stages.*.checkpoint.*", "stages.*.deadlines.*", "stages.*.health.*", "stages.*.alarms",
    "stages.*.alarms.*",
    "stages.*.learner.threads", "stages.*.learner.device", "stages.*.learner.micro_batch_tokens",
    "stages.*.learner.ranks", "stages.*.learner.replicas", "stages.*.learner.context",
    "stages.*.learner.tensor", "stages.*.learner.expert", "stages.*.learner.offload",
    "stages.*.learner.offload.*", "stages.*.learner.packing", "stages.*.learner.compile",
    "stages.*.learner.gradient_checkpointing",
    "stages.*.learner.recompute", "stages.*.learner.reshard_after_forward",
    "stages.*.rollout.replicas", "stages.*.rollout.engine.*", "stages.*.rollout.generate_deadline_s",
    "stages.*.rollout.retries", "stages.*.rollout.record", "stages.*.rollout.sync_tolerance",
    "stages.*.rollout.weight_sync.*",
    "stages.*.rollout.scheduling.router", "stages.*.rollout.scheduling.kv_tokens",
    "stages.*.rollout.scheduling.weigh_health", "stages.*.rollout.scheduling.quarantine_after",
    "stages.*.rollout.scheduling.stragglers", "stages.*.rollout.scheduling.stragglers.*",
    "stages.*.rollout.scheduling.wait_deadline_s",
    "stages.*.rewards.adaptive_deadline", "stages.*.rewards.adaptive_deadline.*",
    "stages.*.critics.placement", "stages.*.critics.threads", "stages.*.reference",
    "stages.*.teacher_logits", "stages.*.teachers.*.placement", "stages.*.teachers.*.device",
    "stages.*.teachers.*.threads", "stages.*.rewards.models.*.placement",
    "stages.*.rewards.models.*.replicas", "stages.*.rewards.models.*.device",
    "stages.*.rewards.models.*.threads", "stages.*.rewards.models.*.max_batch",
    "stages.*.rewards.models.*.wait_s",
    "stages.*.episodes.workers", "stages.*.episodes.step_deadline_s", "stages.*.environments.*.concurrency",
    "stages.*.rewards.workers", "stages.*.rewards.deadline_s", "stages.*.rewards.concurrency",
)  # fmt: skip
"""Keys that a resume may change: where and how fast the run computes, not what it learns from what. A `*`
within a key stands for one part of it, one at the end for all that follows."""

_FREE_KEY = re.compile(
    "|".join(re.escape(key).replace(r"\*\.", r"[^.]+\.").replace(r"\*", ".+") for key in FREE)
)

SHOWN = 10


class ResumeError(RollLaunchError):
    """A run cannot go on from what its directory holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHistory:
    """A stage that has begun: StageHistory(progress=StageProgress(step=40, ...), checkpoint=Path("step_40")).

    Attributes:
        progress: Where it stands.
        checkpoint: Where the trainer goes on from; None if the stage is finished.
    """

    progress: StageProgress
    checkpoint: Path | None

    @property
    def finished(self) -> bool:
        """Whether the stage's model is there."""
        return self.checkpoint is None


History = Mapping[str, StageHistory]
"""The stages that need not begin anew, by name: finished ones, then at most one that has a checkpoint."""


def read_history(directory: RunDirectory, config_text: str, plans: Sequence[StagePlan]) -> History:
    """Finds where each stage stands.

    Args:
        directory: Of the run.
        config_text: The configuration to go on under, dumped and masked as checkpoints hold it.
        plans: All stages, in order.

    Raises:
        ResumeError: What is there was written under another configuration or with other data; names the
            differences. Or it is of a stage that the configuration does not have, or of another step than it
            is called after.
        CheckpointError: The directory cannot be read.
        ProgressError: A complete checkpoint holds a progress file of another form.
    """
    _refuse_unnamed(directory, plans)
    found: dict[str, StageHistory] = {}
    begun: list[str] = []
    for plan in plans:
        stage = plan.stage.name
        begun.append(stage)
        history = _finished(directory, stage) or _checkpointed(directory, stage)
        if history is None:
            break
        source = history.checkpoint or directory.finished(stage)
        _refuse_other(source, config_text, begun, plan, history.progress)
        found[stage] = history
        if not history.finished:
            break
    return found


def _finished(directory: RunDirectory, stage: str) -> StageHistory | None:
    for part in (directory.model(stage), directory.finished(stage)):
        if not part.is_dir():
            return None
        try:
            store.verify(part)
        except store.CheckpointError as error:
            logger.warning("stage %s is not finished: %s", stage, error)
            return None
    return StageHistory(progress=StageProgress.load(directory.finished(stage) / PROGRESS), checkpoint=None)


def _checkpointed(directory: RunDirectory, stage: str) -> StageHistory | None:
    newest = store.newest(directory.checkpoints(stage))
    if newest is None:
        return None
    progress = StageProgress.load(newest / PROGRESS)
    if newest.name != f"step_{progress.step}":
        raise ResumeError(f"{newest} was written after step {progress.step}; give it back its name")
    return StageHistory(progress=progress, checkpoint=newest)


def _refuse_unnamed(directory: RunDirectory, plans: Sequence[StagePlan]) -> None:
    """Under another name a stage would begin anew, and leave what it had come to behind."""
    names = [plan.stage.name for plan in plans]
    for root in sorted(directory.stages.glob("*")):
        if root.name not in names and any((root / part).exists() for part in ("checkpoints", "model")):
            raise ResumeError(
                f"{root} is of a stage that the configuration does not have; its stages are "
                f"{', '.join(names)}. Give the stage its name again, or start another run"
            )


def _refuse_other(
    source: Path, config_text: str, begun: Sequence[str], plan: StagePlan, progress: StageProgress
) -> None:
    """A checkpoint goes on only under the configuration and with the data that it was made with."""
    try:
        before = _relevant(_with_defaults((source / CONFIG).read_text(encoding="utf-8")), begun)
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise ResumeError(f"{source / CONFIG} cannot be read: {type(error).__name__}: {error}") from error
    now = _relevant(config_text, begun)
    different = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if different:
        lines = [
            f"  {key}: {before.get(key, 'not there')} in the checkpoint, {now.get(key, 'not there')} now"
            for key in different[:SHOWN]
        ]
        if len(different) > SHOWN:
            lines.append(f"  and {len(different) - SHOWN} more")
        raise ResumeError(
            f"{source} was written under another configuration:\n"
            + "\n".join(lines)
            + "\nresume with the same values, or start another run from its weights (model.source pretrained)"
        )
    if progress.data != plan.digest():
        raise ResumeError(
            f"{source} was written with other data: stage {plan.stage.name} had the digest {progress.data}, "
            f"its data now have {plan.digest()}; bring the data back as they were"
        )


def _with_defaults(text: str) -> str:
    """A configuration that an earlier version wrote has no keys that came later: they had their defaults."""
    try:
        return dump_config(load_text(text, RunConfig).config)
    except ConfigError:
        # Of a key that is no more; the comparison names it.
        return text


def _relevant(text: str, stages: Sequence[str]) -> dict[str, object]:
    """Dotted keys and values of what decides what the named stages learn."""
    tree = yaml.safe_load(text)
    tree["stages"] = {stage["name"]: stage for stage in tree["stages"] if stage["name"] in stages}
    return {key: value for key, value in leaves(tree) if not _FREE_KEY.fullmatch(key)}
