"""What `roll-launch run` and `roll-launch check` do; `cli.py` parses for them."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from roll_launch.config import LoadedConfig, RunConfig, check_existence, dump_config, load_config
from roll_launch.errors import RollLaunchError
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.prepare import run_preparation
from roll_launch.run_directory import RunDirectory, environment_report, write_json
from roll_launch.run_log import logged_to

if TYPE_CHECKING:
    from roll_launch.run import Outcome

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

DETAIL_LINES = 25
"""Of a worker's traceback, so that a report stays on one screen."""


def run(config_path: Path, overrides: Sequence[str], *, run_dir: Path | None) -> int:
    """Runs a configuration; returns the exit code."""
    console = Console(stderr=True)
    try:
        loaded = _load(config_path, overrides)
        config = loaded.config
        directory = RunDirectory.choose(Path(config.directory), now=datetime.now(), exact=run_dir)
        prepare(config, console)
        plans = plan_stages(config, directory)
        directory.make()
    except RollLaunchError as error:
        return _bad_input(error)
    directory.config.write_text(dump_config(config, secrets=loaded.document.secrets), encoding="utf-8")
    write_json(directory.environment, environment_report())
    console.print(
        f"{config.name}: {', '.join(plan.stage.name for plan in plans)} in {directory.root}", highlight=False
    )
    with logged_to(directory.log, console):
        outcome = _execute(config, plans, directory, console)
    return _report(outcome, directory, console)


def check(config_path: Path, overrides: Sequence[str]) -> int:
    """Checks a configuration, prints what it comes to and runs it dry; returns the exit code."""
    from roll_launch.check import check_run

    console = Console(stderr=True)
    try:
        loaded = _load(config_path, overrides)
        prepare(loaded.config, console)
        return check_run(loaded.config, secrets=loaded.document.secrets)
    except RollLaunchError as error:
        return _bad_input(error)


def prepare(config: RunConfig, console: Console) -> None:
    """Runs the preparations whose directories do not hold them yet."""
    for preparation in config.prepare:
        if run_preparation(preparation.callable, Path(preparation.directory), preparation.arguments):
            console.print(f"prepared {preparation.directory} with {preparation.callable}", highlight=False)


def _load(path: Path, overrides: Sequence[str]) -> LoadedConfig[RunConfig]:
    """Reads a configuration and checks that what it names is there."""
    # Callables named by import path may stand in the working directory, as with `python -m`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    loaded = load_config(path, overrides)
    check_existence(loaded.config, loaded.document)
    return loaded


def _execute(
    config: RunConfig, plans: list[StagePlan], directory: RunDirectory, console: Console
) -> "Outcome":
    from roll_launch.run import Run

    return asyncio.run(Run(config, plans, directory, console).execute())


def _report(outcome: "Outcome", directory: RunDirectory, console: Console) -> int:
    """Says how a run ended, a failure's first cause last; returns the exit code."""
    console.print(f"{outcome.status}: {outcome.account}", highlight=False)
    console.print(
        f"summary, metrics, rollouts and models are in {directory.root}", highlight=False, soft_wrap=True
    )
    if outcome.status == "finished":
        return EXIT_OK
    if outcome.status == "interrupted":
        _leave_now_if_threads_are_busy(EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    if outcome.detail:
        print("\n".join(outcome.detail.splitlines()[-DETAIL_LINES:]), file=sys.stderr)
    print(f"the run failed; log in {directory.log}\n{outcome.cause}", file=sys.stderr)
    _leave_now_if_threads_are_busy(EXIT_FAILED)
    return EXIT_FAILED


def _leave_now_if_threads_are_busy(code: int) -> None:
    """Python would wait at exit for a role's thread that still computes what nobody wants any more."""
    if any(
        thread.is_alive() for thread in threading.enumerate() if thread.name.startswith(("trainer", "actor-"))
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)


def _bad_input(error: RollLaunchError) -> int:
    print(f"roll-launch: {error}", file=sys.stderr)
    return EXIT_BAD_INPUT
