"""`roll-launch resume`: goes on with a run from what its directory holds."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from roll_launch import checkpoint_store as store
from roll_launch.config import RunConfig, dump_config, leaves
from roll_launch.config.credentials import MASK
from roll_launch.history import History, ResumeError, read_history
from roll_launch.inputs import load_inputs
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.run import execute
from roll_launch.run_directory import METRICS_FILE, RunDirectory, rollouts_file
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
        started_in, masked = directory.origin()
        _go_to(started_in, console)
        loaded = load_inputs(directory.config, overrides, console)
        _refuse_masked(directory, loaded.config, masked)
        plans = plan_stages(loaded.config, directory)
        text = dump_config(loaded.config, secrets=loaded.document.secrets)
        with logged_to(directory.log, console):
            history = read_history(directory, text, plans)
            console.print(f"{loaded.config.name}: {_told(plans, history)}, in {directory.root}")
            clear_the_way(directory, plans, history)
        return execute(loaded.config, plans, directory, console, config_text=text, history=history)


def clear_the_way(directory: RunDirectory, plans: Sequence[StagePlan], history: History) -> None:
    """Cuts off what was written after the point where the run goes on: those steps are done again.

    Raises:
        ResumeError: A file has lost what a checkpoint says is in it, or cannot be cut.
        CheckpointError: Something cannot be set aside.
    """
    names = [plan.stage.name for plan in plans]
    files = {METRICS_FILE: 0} | {rollouts_file(name): 0 for name in names}
    for name in names:
        if name in history:
            files |= history[name].progress.files
    for file, length in files.items():
        _cut(directory.root / file, length)
    for name in names:
        if name not in history or not history[name].finished:
            step = history[name].progress.step if name in history else 0
            store.set_aside(directory.checkpoints(name), after=step)
            # Of an attempt on other weights, should an earlier stage have to be done again.
            store.put_aside(directory.finished(name))
            store.put_aside(directory.model(name))


def _cut(path: Path, length: int) -> None:
    try:
        found = path.stat().st_size if path.exists() else 0
        if found < length:
            raise ResumeError(
                f"{path} has {found} bytes, but {length} had been written when the checkpoint was; bring it "
                "back, or start another run from the checkpoint's weights (model.source pretrained)"
            )
        if found > length:
            _refuse_within_a_line(path, length)
            os.truncate(path, length)
    except OSError as error:
        raise ResumeError(f"{path} cannot be cut to {length} bytes: {error}") from error


def _refuse_within_a_line(path: Path, length: int) -> None:
    if length == 0:
        return
    with path.open("rb") as file:
        file.seek(length - 1)
        if file.read(1) != b"\n":
            raise ResumeError(
                f"{path} has changed: a line ended at byte {length} when the checkpoint was made, and none "
                "does now; bring it back, or start another run from the checkpoint's weights (model.source "
                "pretrained)"
            )


def _go_to(started_in: Path, console: Console) -> None:
    """Relative paths and callables of the configuration are meant from where the run was started."""
    try:
        if Path.cwd() == started_in:
            return
        os.chdir(started_in)
    # A path that holds what no path can is a ValueError.
    except (OSError, ValueError) as error:
        raise ResumeError(f"the run was started in {started_in}, which cannot be used: {error}") from error
    console.print(f"relative paths are from {started_in}, where the run was started")


def _refuse_masked(directory: RunDirectory, config: RunConfig, masked: Sequence[str]) -> None:
    """A credential is not in config.yaml; it has to be given again."""
    values = dict(leaves(config.model_dump(mode="json")))
    missing = [key for key in masked if MASK in str(values.get(key, ""))]
    if missing:
        raise ResumeError(
            f"{directory.config}: masked when it was written, and to be given again: "
            + ", ".join(f"{key}=VALUE" for key in missing)
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
