"""Where log records of a run go."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from roll_launch.errors import RollLaunchError

SHOWN_OTHERWISE = ("roll_launch.alarms", "roll_learners.local")
"""Loggers whose warnings the progress display shows in its own words; the file has them as they are."""


class RunLogError(RollLaunchError):
    """The log of a run cannot be written."""


@contextlib.contextmanager
def logged_to(path: Path, console: Console) -> Iterator[None]:
    """Everything from INFO goes to the file at `path` while the body runs; warnings also to the console.

    Raises:
        RunLogError: The file cannot be opened.
    """
    from rich.logging import RichHandler

    try:
        file = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise RunLogError(f"{path} cannot be written: {error}") from error
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    screen = RichHandler(console=console, show_path=False, show_time=False, level=logging.WARNING)
    screen.addFilter(lambda record: not record.name.startswith(SHOWN_OTHERWISE))
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.INFO)
    root.addHandler(file)
    root.addHandler(screen)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(file)
        root.removeHandler(screen)
        file.close()
