"""The command line as a user runs it, on the quickstart's configuration."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"

SHORT = (
    "stages.sft.steps=40",
    "stages.rlvr.steps=3",
    "stages.rlvr.evaluation.prompts=32",
    "stages.rlvr.evaluation.every=2",
    "stages.sft.learner.optimizer.warmup_steps=5",
    "stages.rlvr.rollout.prompts_per_step=4",
    "stages.rlvr.rollout.group_size=4",
)
"""Overrides that make the quickstart a matter of seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that ended."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def summary(self) -> dict[str, object]:
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def metrics(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]


def command(*arguments: str) -> list[str]:
    """roll-launch in this environment."""
    return [sys.executable, "-m", "roll_launch.cli", *arguments]
