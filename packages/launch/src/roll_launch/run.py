"""`roll-launch run`: plans a configuration, runs its stages in order, and says how that ended."""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from roll_launch.config import RayRuntimeConfig, RunConfig, dump_config, masked_keys
from roll_launch.display import Display
from roll_launch.failures import RoleError, first_cause
from roll_launch.history import History
from roll_launch.inputs import load_inputs
from roll_launch.interrupt import Interrupt, Interrupted
from roll_launch.local_runtime import LocalRuntime
from roll_launch.pipelines.choice import pipeline_of
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.processors import processors
from roll_launch.roles import Runtime
from roll_launch.run_directory import RunDirectory, write_json
from roll_launch.run_log import logged_to
from roll_launch.screen import screen
from roll_launch.summary import Outcome, account, run_summary
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits

logger = logging.getLogger(__name__)

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}

STOP_ROLES_S = 60.0
CLOSE_S = 4.0
"""Seconds for taking down the runtime; with the interrupt's grace time Ctrl-C stays under ten."""

ROLE_THREADS = ("trainer", "actor-", "critic", "teacher-", "reward-model-")
"""What names of threads begin with on which roles of this process compute."""

DETAIL_LINES = 25
"""Of a worker's traceback, so that a report stays on one screen."""


def run(config_path: Path, overrides: Sequence[str], *, run_dir: Path | None) -> int:
    """Runs a configuration; returns the exit code.

    Raises:
        RollLaunchError: Bad input; nothing was started.
    """
    console = screen()
    loaded = load_inputs(config_path, overrides, console)
    config = loaded.config
    directory = RunDirectory.claim(Path(config.directory), now=datetime.now(), exact=run_dir)
    with directory.released_on_error():
        plans = plan_stages(config, directory)
    with directory.locked():
        secrets = loaded.document.secrets
        text = dump_config(config, secrets=secrets)
        directory.describe(text, masked=masked_keys(config, secrets=secrets))
        if run_dir is None:
            directory.become_latest()
        console.print(f"{config.name}: {', '.join(plan.stage.name for plan in plans)} in {directory.root}")
        return execute(config, plans, directory, console, config_text=text, history={})


def execute(
    config: RunConfig,
    plans: Sequence[StagePlan],
    directory: RunDirectory,
    console: Console,
    *,
    config_text: str,
    history: History,
) -> int:
    """Runs what is left of a planned run; returns the exit code."""
    run = Run(config, plans, directory, console, config_text=config_text, history=history)
    with logged_to(directory.log, console):
        outcome = asyncio.run(run.execute())
    return _report(outcome, directory, console)


class Run:
    """A planned run.

    Args:
        config: The whole configuration.
        plans: Its stages, with their data.
        directory: Where everything is written.
        console: Where progress is shown.
        config_text: The configuration as checkpoints hold it, credentials masked.
        history: Where each stage stands that need not begin anew.
    """

    def __init__(
        self,
        config: RunConfig,
        plans: Sequence[StagePlan],
        directory: RunDirectory,
        console: Console,
        *,
        config_text: str,
        history: History,
    ) -> None:
        self._config = config
        self._plans = plans
        self._directory = directory
        self._console = console
        self._config_text = config_text
        self._history = history
        self._began = time.monotonic()
        self._seconds_before = max((stage.progress.run_seconds for stage in history.values()), default=0.0)
        self._display = Display(console)
        self._interrupt = Interrupt()
        self._waits = Waits()
        self._results: dict[str, StageResult] = {}

    async def execute(self) -> Outcome:
        """Runs all stages; writes summary.json and says a line however they end."""
        # Of an attempt that is killed this is what stays.
        self._summarise(Outcome(status="running"))
        tensorboard = self._directory.tensorboard if self._config.tracking.tensorboard else None
        try:
            with (
                self._interrupt.installed(),
                MetricLog(self._directory.metrics, tensorboard=tensorboard) as log,
            ):
                async with self._waits.watch():
                    await self._run_stages(log)
            outcome = Outcome(status="finished")
        # The boundary of a run: whatever ended it goes into the summary, by its first cause.
        except (Exception, asyncio.CancelledError) as error:
            outcome = self._outcome_of(error)
        finally:
            self._display.end()
        self._summarise(outcome)
        self._console.print(account(outcome, self._results, self._seconds()))
        return outcome

    def _summarise(self, outcome: Outcome) -> None:
        summary = run_summary(self._config, outcome, self._results, self._seconds())
        try:
            write_json(self._directory.summary, summary)
        except OSError as error:
            # A full disk may be why the run failed; its first cause is to be told all the same.
            logger.warning("%s was not written: %s", self._directory.summary, error)

    async def _run_stages(self, log: MetricLog) -> None:
        for name, history in self._history.items():
            if history.finished:
                self._results[name] = StageResult()
                self._results[name].restore(history.progress)
        if len(self._results) == len(self._plans):
            return
        runtime = await self._start_runtime()
        try:
            context = RunContext(
                config=self._config,
                directory=self._directory,
                runtime=runtime,
                waits=self._waits,
                interrupt=self._interrupt,
                log=log,
                display=self._display,
                processors=processors(),
                run_seconds=self._seconds,
                config_text=self._config_text,
            )
            for plan in self._plans:
                if plan.stage.name in self._results:
                    continue
                pipeline = pipeline_of(plan, context, self._history.get(plan.stage.name))
                self._results[plan.stage.name] = pipeline.result
                await pipeline.run()
                what = f"end of the roles of {plan.stage.name}"
                async with self._waits.wait(what, deadline_s=STOP_ROLES_S):
                    await runtime.stop_roles()
        finally:
            with self._interrupt.closing():
                await self._close(runtime)

    async def _start_runtime(self) -> Runtime:
        runtime = self._config.runtime
        if not isinstance(runtime, RayRuntimeConfig):
            return LocalRuntime()
        # Ray is imported only by runs that use it.
        from roll_launch.ray.runtime import start_ray_runtime

        async with self._waits.wait("start of Ray", deadline_s=runtime.start_deadline_s):
            return await start_ray_runtime(
                runtime, self._config.stages, keep_logs=self._directory.worker_logs
            )

    def _seconds(self) -> float:
        """Of the run so far, with the attempts that led here."""
        return self._seconds_before + time.monotonic() - self._began

    async def _close(self, runtime: Runtime) -> None:
        try:
            async with self._waits.wait("end of the runtime", deadline_s=CLOSE_S):
                await runtime.close()
        # The run's own outcome matters more than a fault while it is taken down; processes end with this one.
        except Exception as error:
            logger.warning("the runtime did not end cleanly: %s", error)

    def _outcome_of(self, error: BaseException) -> Outcome:
        if self._interrupt.requested and isinstance(error, Interrupted | asyncio.CancelledError):
            return Outcome(status="interrupted", cause="interrupted by a signal")
        cause = first_cause(error)
        # Only the log gets the traceback; the screen shows the first cause.
        logger.info("the run failed", exc_info=error)
        detail = cause.detail if isinstance(cause, RoleError) else ""
        return Outcome(status="failed", cause=f"{type(cause).__name__}: {cause}", detail=detail)


def _report(outcome: Outcome, directory: RunDirectory, console: Console) -> int:
    """Says where everything is, a failure's first cause last; returns the exit code."""
    code = EXIT_CODES[outcome.status]
    lines = [f"summary, metrics, rollouts and models are in {directory.root}"]
    if outcome.status == "failed":
        lines = [*outcome.detail.splitlines()[-DETAIL_LINES:], *lines]
        lines += [f"the run failed; its log is {directory.log}", str(outcome.cause)]
    # What others have printed comes first, so that a first cause is last on the screen.
    sys.stdout.flush()
    console.print("\n".join(lines), markup=False)
    if code and _threads_are_busy():
        # Python would wait for a role's thread that still computes what nobody wants any more.
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
    return code


def _threads_are_busy() -> bool:
    return any(thread.name.startswith(ROLE_THREADS) for thread in threading.enumerate())
