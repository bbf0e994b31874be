"""The quickstart's task on two ranks through Ray: it learns, and a rank that is killed ends the run."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from background_run import BackgroundRun
from launched_run import QUICKSTART, command

RANKS = "{backend: fsdp2, ranks: 2, threads: 1, optimizer: {learning_rate: 3.0e-3, warmup_steps: 5}}"
SETTINGS = (
    f"stages.sft.learner={RANKS}",
    "stages.rlvr.learner={backend: fsdp2, ranks: 2, threads: 1, mini_batches: 2,"
    " optimizer: {learning_rate: 4.0e-4, betas: [0.9, 0.99]}}",
    "stages.sft.steps=150",
    "stages.rlvr.steps=12",
    "stages.rlvr.evaluation=null",
    "stages.rlvr.checkpoint.every=2",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_killed_ends_the_run_with_its_cause_and_the_run_goes_on(workspace: Path) -> None:
    directory = workspace / "run"
    run = BackgroundRun(
        ["run", str(QUICKSTART), *SETTINGS, "--run-dir", str(directory)],
        workspace=workspace,
        directory=directory,
    )
    try:
        run.wait_for_step("rlvr", 5, limit_s=300)
        ranks = run.workers("RankActor")
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        began = time.monotonic()
        assert run.process.wait(60) == 1, run.screen()
        assert time.monotonic() - began < 30
    finally:
        run.end()
    assert "died during" in run.screen()
    assert (directory / "stages" / "rlvr" / "checkpoints" / "step_4" / "fsdp2").is_dir()
    done = subprocess.run(
        command("resume", str(directory)), cwd=workspace, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rewards = [
        line["critic/rewards/mean"]
        for line in lines
        if line["stage"] == "rlvr" and "critic/rewards/mean" in line
    ]
    assert [line["step"] for line in lines if line["stage"] == "rlvr"] == list(range(1, 13))
    assert sum(rewards[-4:]) > sum(rewards[:4])
