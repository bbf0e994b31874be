"""Short runs in environments with real models: a resume is exact, and roles in Ray actors play too."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "agentic_number_guessing.yaml"
SMALL = (
    "tracking.tensorboard=false",
    "stages.sft.steps=40",
    "stages.sft.batch_size=32",
    "stages.rl.evaluation.episodes=32",
    "stages.rl.evaluation.every=100",
    "stages.rl.rollout.prompts_per_step=4",
    "stages.rl.rollout.group_size=4",
    "stages.rl.learner.mini_batches=1",
    "stages.rl.steps=4",
    "stages.rl.checkpoint.every=1",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def launched(tmp_path: Path, name: str, *overrides: str, command: str = "run") -> subprocess.Popen[str]:
    where = [str(EXAMPLE), "--run-dir", str(tmp_path / name)] if command == "run" else [str(tmp_path / name)]
    data = tmp_path / "data"
    places = (
        f"prepare.0.directory={data}",
        f"stages.sft.model.tokenizer={data}/tokenizer",
        f"stages.sft.data.path={data}/demonstrations.jsonl",
    )
    given = (
        [*places, "prepare.0.arguments.demonstrations=400", *SMALL, *overrides] if command == "run" else []
    )
    return subprocess.Popen(
        [sys.executable, "-m", "roll_launch.cli", command, *where, *given],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate()
    assert process.returncode == 0, output[-3000:]
    return output


def rows(directory: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def trained(directory: Path) -> list[tuple[object, ...]]:
    """Losses of each step, to the last bit."""
    return [
        (row["step"], row["actor/pg_loss"], row["actor/grad_norm"], row["critic/score/mean"])
        for row in rows(directory, "metrics.jsonl")
        if row.get("stage") == "rl" and "actor/pg_loss" in row
    ]


def test_a_run_that_was_killed_goes_on_with_bit_identical_losses(tmp_path: Path) -> None:
    finished(launched(tmp_path, "whole"))
    whole = trained(tmp_path / "whole")
    assert len(whole) == 4
    process = launched(tmp_path, "killed")
    checkpoint = tmp_path / "killed" / "stages" / "rl" / "checkpoints" / "step_2"
    until = time.monotonic() + 500
    while not checkpoint.is_dir() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert checkpoint.is_dir()
    finished(launched(tmp_path, "killed", command="resume"))
    assert trained(tmp_path / "killed") == whole
    lines = [rows(tmp_path / name, "rollouts/rl.jsonl") for name in ("whole", "killed")]
    assert [line["messages"] for line in lines[0]] == [line["messages"] for line in lines[1]]


def test_the_same_stage_plays_through_ray_asynchronously_with_credit_by_turns(tmp_path: Path) -> None:
    finished(
        launched(
            tmp_path,
            "ray",
            "runtime={kind: ray, start_deadline_s: 400}",
            "stages.rl.algorithm={preset: gigpo}",
            "stages.rl.episodes.samples=step_concatenated",
            "stages.rl.rollout.asynchrony={max_staleness: 1}",
        )
    )
    assert len(trained(tmp_path / "ray")) == 4
    last = next(row for row in reversed(rows(tmp_path / "ray", "metrics.jsonl")) if "env/turns/mean" in row)
    # Some episodes were played by the version before.
    assert last["env/status/done"] == 1.0 and last["training/rollout_probs_diff_mean"] < 1e-2  # type: ignore[operator]
