"""Faults of whole stages become alarms in the log, on the screen, in the metrics and in the summary."""

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from roll_launch.config import RunConfig, load_text
from roll_launch.dry_run import DryRuntime, DryTrainer
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.roles import Handle, ScoredRollout, Trainer, TrainerSpec
from roll_launch.run import Run
from roll_launch.run_directory import RunDirectory
from roll_launch.run_log import logged_to
from roll_learners import Sample, SkippedUpdate, StepResult

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]

CONSTANT = "stages.rlvr.rewards.grader={name: python, options: {callable: 'constant_grader:grade'}}"


class SkippingTrainer(DryTrainer):
    """Skips every update, because of the third sample of each batch."""

    async def policy_step(
        self, samples: Sequence[ScoredRollout], teachers: Sequence[Handle] = ()
    ) -> StepResult:
        return self._skipped()

    async def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        return self._skipped()

    def _skipped(self) -> StepResult:
        record = SkippedUpdate(update=0, what="loss", samples=(2,), loss=math.nan, gradient_norm=math.nan)
        return StepResult(metrics={"actor/skipped_steps": 1.0}, updates=0, skipped=(record,))


class SkippingRuntime(DryRuntime):
    async def start_trainer(self, spec: TrainerSpec) -> Trainer:
        return SkippingTrainer()


@dataclass
class Ended:
    """A run that ended, and what is left of it."""

    status: str
    cause: str | None
    screen: str
    directory: RunDirectory

    @property
    def log(self) -> str:
        return self.directory.log.read_text(encoding="utf-8")

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.directory.summary.read_text(encoding="utf-8"))

    @property
    def steps(self) -> list[dict[str, Any]]:
        lines = map(json.loads, self.directory.metrics.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if "timing_s/step" in line]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs planned stages with fake roles and everything else as in a real run."""
    (tmp_path / "constant_grader.py").write_text("def grade(response): return 0.25\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    async def run(config: RunConfig, plans: list[StagePlan], runtime: type = DryRuntime) -> Ended:
        monkeypatch.setattr("roll_launch.run.LocalRuntime", runtime)
        out = io.StringIO()
        console = Console(file=out, width=400)
        directory = RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / "run")
        with logged_to(directory.log, console):
            run = Run(config, plans, directory, console, config_text="", history={})
            outcome = await run.execute()
        return Ended(status=outcome.status, cause=outcome.cause, screen=out.getvalue(), directory=directory)

    return run


async def test_a_grader_of_constant_scores_is_told_everywhere(planned: Planned, ended: Any) -> None:
    done = await ended(*planned(CONSTANT, "stages.rlvr.steps=5", "stages.rlvr.evaluation=null"))
    assert done.status == "finished"
    told = "alarm equal_scores: all 8 scores of the batch are 0.25 (critic/score/max 0.25, limit 0.25)."
    assert f"WARNING roll_launch.alarms.stage: rlvr step 3: {told}" in done.log
    assert done.screen.count(f"rlvr  step 3/5  {told.replace('alarm', 'ALARM')}") == 1
    assert done.screen.count("all 8 scores") == 1
    assert "alarms 1, last equal_scores (step 3)" in done.screen
    assert [line.get("alarm/equal_scores") for line in done.steps] == [None, None, 1.0, 1.0, 1.0]
    assert done.summary["alarms"] == [
        {
            "name": "equal_scores",
            "stage": "rlvr",
            "count": 3,
            "first_step": 3,
            "last_step": 5,
            "metric": "critic/score/max",
            "worst": 0.25,
        }
    ]
    assert "; ALARMS: equal_scores in rlvr (3 steps)" in done.screen.splitlines()[-1]


async def test_a_run_without_a_fault_has_an_empty_list_and_says_nothing(planned: Planned, ended: Any) -> None:
    done = await ended(*planned("stages.rlvr.evaluation=null"))
    assert done.summary["alarms"] == []
    assert "alarm" not in done.screen.lower()


async def test_skipped_updates_name_group_member_and_prompt_and_end_the_run(
    planned: Planned, ended: Any
) -> None:
    config, plans = planned(
        "stages.rlvr.steps=9", "stages.rlvr.evaluation=null", "stages.rlvr.alarms.skipped_update.end_after=3"
    )
    done = await ended(config, plans, SkippingRuntime)
    assert done.status == "failed"
    assert done.cause.startswith("SkippedUpdatesError: no update was taken in 3 steps in a row")
    first = json.loads((done.directory.rollouts("rlvr")).read_text(encoding="utf-8").splitlines()[2])
    name = f"group {first['group']} member {first['member']} ("
    assert name in done.log
    assert f"{first['prompt']!r}) (actor/skipped_steps 1, limit 0)" in done.screen
    assert "train.jsonl:" in done.cause
    assert [line["alarm/skipped_update"] for line in done.steps] == [1.0] * 3
    assert done.summary["steps"] == 3
    assert [alarm["count"] for alarm in done.summary["alarms"] if alarm["name"] == "skipped_update"] == [3]


SUPERVISED = """
name: test
stages:
  - name: sft
    pipeline: sft
    model: {{source: random, architecture: qwen3, tokenizer: {task}/tokenizer}}
    data: {{source: jsonl, path: {task}/demonstrations.jsonl}}
    learner: {{optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 2
    batch_size: 4
    max_tokens: 112
"""


async def test_skipped_demonstrations_are_named_by_file_and_line(
    task: Path, tmp_path: Path, ended: Any
) -> None:
    config = load_text(SUPERVISED.format(task=task), RunConfig).config
    plans = plan_stages(config, RunDirectory(root=tmp_path / "run"))
    done = await ended(config, plans, SkippingRuntime)
    assert done.status == "finished"
    told = [line.partition(" in ")[2] for line in done.log.splitlines() if "alarms.skipped" in line]
    assert len(told) == 2
    assert all(each.startswith(f"{task}/demonstrations.jsonl:") for each in told)
    assert told[0] != told[1]
    assert done.summary["alarms"][0]["stage"] == "sft"


async def test_alarms_that_are_null_are_silent(planned: Planned, ended: Any) -> None:
    config, plans = planned(
        CONSTANT, "stages.rlvr.steps=4", "stages.rlvr.evaluation=null", "stages.rlvr.alarms=null"
    )
    done = await ended(config, plans)
    assert done.summary["alarms"] == []
    assert "alarm" not in done.log.lower()
