"""When a stage writes checkpoints, and how one becomes visible only when it is whole."""

import asyncio
import os
import re
import shutil
from pathlib import Path

from roll_launch.config import CheckpointConfig
from roll_launch.errors import RollLaunchError
from roll_launch.pipelines.stage import RunContext
from roll_launch.roles import Trainer
from roll_launch.run_directory import write_json
from roll_launch.timing import PhaseTimes

MANIFEST = "manifest.json"
"""Written last: a directory without it is no checkpoint."""

STEP = re.compile(r"step_(\d+)")


class CheckpointError(RollLaunchError):
    """A checkpoint was not written."""


class CheckpointSchedule:
    """The checkpoints of one stage.

    Args:
        stage: Its name.
        config: How often, and how many to keep.
        trainer: Whose weights.
        context: Of the run.
    """

    def __init__(self, stage: str, config: CheckpointConfig, trainer: Trainer, context: RunContext) -> None:
        self._stage = stage
        self._config = config
        self._trainer = trainer
        self._context = context

    async def after_step(self, step: int, times: PhaseTimes) -> None:
        """Writes a checkpoint if `step` is one of those that get one."""
        every = self._config.every
        if every is None or step % every:
            return
        root = self._context.directory.checkpoints(self._stage)
        with times.phase("save_checkpoint"):
            await self._write(root / f"step_{step}", state=True, what=f"checkpoint of step {step}")
            await asyncio.to_thread(rotate, root, keep=self._config.keep)

    async def final(self, times: PhaseTimes) -> None:
        """Writes the stage's model as a Hugging Face directory, which later stages start from."""
        with times.phase("save_checkpoint"):
            target = self._context.directory.model(self._stage)
            await self._write(target, state=False, what=f"model of {self._stage}")

    async def _write(self, target: Path, *, state: bool, what: str) -> None:
        beside = target.with_name(target.name + ".tmp")
        async with self._context.waits.wait(what, deadline_s=self._config.deadline_s):
            await asyncio.to_thread(_emptied, beside)
            await self._trainer.save(beside, state=state)
            await asyncio.to_thread(commit, beside, target)


def commit(beside: Path, target: Path) -> None:
    """Makes a written directory visible under its name: files to disk, manifest, rename, in this order.

    Raises:
        CheckpointError: Nothing was written there.
    """
    files = sorted(path for path in beside.rglob("*") if path.is_file())
    if not files:
        raise CheckpointError(
            f"nothing was written to {beside}: the machine of the trainer does not share this path"
        )
    sizes = {str(path.relative_to(beside)): path.stat().st_size for path in files}
    write_json(beside / MANIFEST, {"files": sizes})
    for path in [*files, beside / MANIFEST, beside]:
        _to_disk(path)
    beside.rename(target)
    _to_disk(target.parent)


def rotate(root: Path, *, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints, by step number."""
    steps = {int(match[1]): path for path in root.iterdir() if (match := STEP.fullmatch(path.name))}
    for step in sorted(steps)[:-keep]:
        shutil.rmtree(steps[step])


def _emptied(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
