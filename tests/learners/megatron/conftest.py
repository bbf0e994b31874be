"""Groups of processes that run the scenarios of `scenarios.py`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).with_name("group_run.py")
DEADLINE_S = 900.0

RunGroup = Callable[..., dict[str, list[Any]]]


@pytest.fixture(scope="session")
def run_group() -> RunGroup:
    """Runs scenarios in order in a group, and gives what each rank returned, by scenario."""

    def run(directory: Path, ranks: int, *scenarios: str) -> dict[str, list[Any]]:
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
        results = {
            name: [
                torch.load(path, weights_only=False) for path in sorted(directory.glob(f"{name}-[0-9].pt"))
            ]
            for name in scenarios
        }
        broken = [each for parts in results.values() for each in parts if isinstance(each, str)]
        assert not broken, broken[0]
        assert codes == [0] * ranks
        assert all(len(parts) == ranks for parts in results.values())
        return results

    return run
