"""The example trains under torchrun, without a launcher, and goes on from its own checkpoint."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "torchrun_fsdp2.py"
LONGEST = 60
"""Lines of it."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_learns_on_two_ranks() -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(EXAMPLE),
    ]
    done = subprocess.run(
        [*command, "20"],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"nll ([\d.]+)", done.stdout)]
    assert len(losses) == 20
    assert losses[-1] < 0.5 < losses[0]


def test_the_example_is_a_page() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < LONGEST
