"""Groups of processes that run the scenarios of `group_run.py`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).with_name("group_run.py")
DEADLINE_S = 400.0

RunGroup = Callable[..., dict[str, list[Any]]]


@pytest.fixture(scope="session")
def run_group() -> RunGroup:
    """Runs scenarios in order in a group, and gives what each rank returned, by scenario."""

    def run(directory: Path, ranks: int, *scenarios: str) -> dict[str, list[Any]]:
        (directory / "rendezvous").unlink(missing_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(rank), str(ranks), str(directory), *scenarios],
                env=environment,
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(DEADLINE_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * ranks
        results = {
            name: [torch.load(directory / f"{name}-{rank}.pt", weights_only=False) for rank in range(ranks)]
            for name in scenarios
        }
        broken = [each for parts in results.values() for each in parts if isinstance(each, str)]
        assert not broken, broken[0]
        return results

    return run
