"""When a stage writes checkpoints, and what goes into one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from roll_launch import checkpoint_store as store
from roll_launch.config import CheckpointConfig
from roll_launch.pipelines.stage import RunContext
from roll_launch.progress import CONFIG, PROGRESS, StageProgress
from roll_launch.run_directory import METRICS_FILE
from roll_launch.timing import PhaseTimes


class Saving(Protocol):
    """Whose weights a stage trains."""

    async def save(self, directory: Path, *, state: bool) -> None:
        """Writes a Hugging Face directory, with the optimizer's state beside it if `state`."""
        ...


class CheckpointSchedule:
    """The checkpoints of one stage.

    Args:
        stage: Its name.
        config: How often, and how many to keep.
        trainer: Whose weights.
        context: Of the run.
        progress: Tells where the stage stands, given the length of files; called between two steps.
        times: Of the stage.
        last: The step of the newest checkpoint, 0 if there is none.
    """

    def __init__(
        self,
        stage: str,
        config: CheckpointConfig,
        trainer: Saving,
        context: RunContext,
        *,
        progress: Callable[[Mapping[str, int]], StageProgress],
        times: PhaseTimes,
        last: int,
    ) -> None:
        self._stage = stage
        self._config = config
        self._trainer = trainer
        self._context = context
        self._progress = progress
        self._times = times
        self._last = last

    async def after_step(self, step: int) -> None:
        """Writes a checkpoint if `step` is one of those that get one, or if the run is to stop here."""
        every = self._config.every
        if every is None or step == self._last:
            return
        if step % every == 0 or self._context.interrupt.requested:
            await self._write(step)

    async def final(self) -> None:
        """Writes the stage's model as a Hugging Face directory, which later stages start from, and what the
        stage came to. A resume finds the stage finished once both are there."""
        directory = self._context.directory
        with self._times.phase("save_checkpoint"):
            await self._put(
                directory.model(self._stage),
                lambda beside: self._trainer.save(beside, state=False),
                what=f"model of {self._stage}",
            )
        await self._put(directory.finished(self._stage), self._describe, what=f"end of {self._stage}")

    async def _write(self, step: int) -> None:
        root = self._context.directory.checkpoints(self._stage)

        async def fill(beside: Path) -> None:
            await self._trainer.save(beside, state=True)
            await asyncio.to_thread(store.refuse_empty, beside)
            await self._describe(beside)

        with self._times.phase("save_checkpoint"):
            await self._put(root / f"step_{step}", fill, what=f"checkpoint of step {step}")
            what = f"removal of checkpoints before step {step}"
            async with self._context.waits.wait(what, deadline_s=self._config.deadline_s):
                await asyncio.to_thread(store.rotate, root, keep=self._config.keep, just_saved=step)
        self._last = step

    async def _put(self, target: Path, fill: Callable[[Path], Awaitable[None]], *, what: str) -> None:
        async with self._context.waits.wait(what, deadline_s=self._config.deadline_s):
            beside = await asyncio.to_thread(store.prepare, target)
            try:
                await fill(beside)
            except BaseException:
                # A full disk gets its space back, whatever ended the writing.
                await asyncio.shield(asyncio.to_thread(store.discard, beside))
                raise
            await asyncio.to_thread(store.commit, beside, target)

    async def _describe(self, beside: Path) -> None:
        """Where the stage stands, and the configuration it has run under."""
        written = await asyncio.to_thread(self._context.log.sync)
        progress = self._progress({METRICS_FILE: written})

        def write() -> None:
            progress.save(beside / PROGRESS)
            (beside / CONFIG).write_text(self._context.config_text, encoding="utf-8")

        await asyncio.to_thread(write)
