"""A user's input, checked and ready: what `roll-launch run` and `roll-launch check` both begin with."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from roll_launch.config import LoadedConfig, RunConfig, check_existence, load_config
from roll_launch.prepare import run_preparation


def load_inputs(path: Path, overrides: Sequence[str], console: Console) -> LoadedConfig[RunConfig]:
    """Reads a configuration, checks that what it names is there, and runs its preparations.

    Raises:
        RollLaunchError: Whatever is wrong with it.
    """
    # Callables named by import path may stand in the working directory, as with `python -m`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    loaded = load_config(path, overrides)
    check_existence(loaded.config, loaded.document)
    for preparation in loaded.config.prepare:
        if run_preparation(preparation.callable, Path(preparation.directory), preparation.arguments):
            console.print(f"prepared {preparation.directory} with {preparation.callable}", highlight=False)
    return loaded
