"""Fixtures that run the quickstart's configuration as a user does."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launched_run import QUICKSTART, Finished, command


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty working directory, where runs and prepared data go."""
    return tmp_path


@pytest.fixture
def short_workspace() -> Iterator[Path]:
    """The same with a short path, because Ray makes Unix sockets below it."""
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def launch(workspace: Path) -> Callable[..., Finished]:
    """Runs the quickstart with overrides in the workspace."""

    def run(*overrides: str, name: str = "run", timeout: float = 170) -> Finished:
        directory = workspace / name
        done = subprocess.run(
            command("run", str(QUICKSTART), "--run-dir", str(directory), *overrides),
            cwd=workspace,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return Finished(code=done.returncode, out=done.stdout, err=done.stderr, directory=directory)

    return run
