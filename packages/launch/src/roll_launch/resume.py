"""`roll-launch resume`: goes on with a run from what its directory holds."""

import os
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console

from roll_launch import checkpoint_store as store
from roll_launch.config.credentials import MASK
from roll_launch.history import History, ResumeError, leaves, read_history
from roll_launch.inputs import load_inputs
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.run import execute
from roll_launch.run_directory import RunDirectory
from roll_launch.run_log import logged_to
from roll_launch.screen import screen


def resume(run_dir: Path, overrides: Sequence[str]) -> int:
    """Goes on with a run that was stopped or killed; returns the exit code.

    Args:
        run_dir: Its directory.
        overrides: Values to change; those that decide what is learned are refused.

    Raises:
        RollLaunchError: There is no such run, it still runs, or it cannot go on; nothing was changed.
    """
    console = screen()
    directory = RunDirectory.reopen(run_dir)
    with directory.locked():
        _go_to(directory.working_directory(), console)
        _refuse_masked(directory, overrides)
        loaded = load_inputs(directory.config, overrides, console)
        plans = plan_stages(loaded.config, directory)
        with logged_to(directory.log, console):
            history = read_history(directory, loaded.config, plans)
            if all(plan.stage.name in history and history[plan.stage.name].finished for plan in plans):
                console.print(f"{loaded.config.name}: all stages are finished in {directory.root}")
                return 0
            console.print(f"{loaded.config.name}: {_told(plans, history)}, in {directory.root}")
            clear_the_way(directory, plans, history)
        return execute(loaded.config, plans, directory, console, history=history)


def _go_to(working_directory: Path, console: Console) -> None:
    """Relative paths and callables of the configuration are meant from where the run was started."""
    if Path.cwd() == working_directory:
        return
    try:
        os.chdir(working_directory)
    except OSError as error:
        raise ResumeError(
            f"the run was started in {working_directory}, which cannot be used: {error}"
        ) from error
    console.print(f"relative paths are from {working_directory}, where the run was started")


def _refuse_masked(directory: RunDirectory, overrides: Sequence[str]) -> None:
    """A credential is not in config.yaml; it has to be given again."""
    given = [word.removeprefix("--").partition("=")[0] for word in overrides]
    for key, value in leaves(yaml.safe_load(directory.config.read_text(encoding="utf-8"))):
        masked = value == MASK or f":{MASK}@" in str(value)
        if masked and not any(word.rpartition(".")[2] == key.rpartition(".")[2] for word in given):
            raise ResumeError(
                f"{directory.config}: the value of {key} was masked when it was written; give it again with "
                f"{key}=VALUE"
            )


def _told(plans: Sequence[StagePlan], history: History) -> str:
    """Where each stage goes on."""
    parts: list[str] = []
    for plan in plans:
        name, steps = plan.stage.name, plan.stage.steps
        if name not in history:
            parts.append(f"{name} from the beginning")
        elif history[name].finished:
            parts.append(f"{name} is finished")
        else:
            parts.append(f"{name} goes on after step {history[name].progress.step} of {steps}")
    return ", ".join(parts)


def clear_the_way(directory: RunDirectory, plans: Sequence[StagePlan], history: History) -> None:
    """Cuts off what was written after the point where the run goes on: those steps are done again."""
    done = [history[plan.stage.name].progress for plan in plans if plan.stage.name in history]
    files = {directory.metrics.name: 0} | {f"rollouts/{plan.stage.name}.jsonl": 0 for plan in plans}
    for progress in done:
        files |= progress.files
    for name, length in files.items():
        path = directory.root / name
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)
    for plan in plans:
        if plan.stage.name not in history or not history[plan.stage.name].finished:
            step = history[plan.stage.name].progress.step if plan.stage.name in history else 0
            store.set_aside(directory.checkpoints(plan.stage.name), after=step)
