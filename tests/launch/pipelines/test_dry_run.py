"""Whole stages on fake engines: data, scheduler, graders, files and metrics are the real ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
from roll_launch.config import RunConfig
from roll_launch.data import DataError
from roll_launch.dry_run import DryRunError, dry_run
from roll_launch.plan import PlanError, StagePlan

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]


async def test_a_stage_runs_a_step_with_evaluations_before_and_after(planned: Planned) -> None:
    results = await dry_run(*planned())
    result = results["rlvr"]
    assert (result.steps, result.samples) == (1, 8)
    assert set(result.metrics) == {"eval/accuracy/before", "eval/accuracy/after"}
    assert {"timing_s/gen", "timing_s/update_actor", "timing_s/weight_sync"} <= result.times.totals().keys()


async def test_stop_strings_and_overlong_shaping_run_dry_too(planned: Planned) -> None:
    results = await dry_run(
        *planned('stages.rlvr.rollout.sampling.stop=[";"]', "stages.rlvr.rewards.overlong={buffer_tokens: 8}")
    )
    assert results["rlvr"].steps == 1


NEVER = "stages.rlvr.rewards.grader={name: python, options: {callable: 'json:loads'}}"


async def test_a_grader_that_never_gives_a_verdict_is_told_in_one_line(planned: Planned) -> None:
    with pytest.raises(
        DryRunError, match=r"dry run of rlvr: (EvaluationError|TooManyFailures): .*json:loads requires s"
    ):
        await dry_run(*planned(NEVER))


async def test_training_without_a_verdict_is_told_too(planned: Planned) -> None:
    with pytest.raises(
        DryRunError, match=r"dry run of rlvr: TooManyFailures: .*reward_error.*json:loads requires s"
    ):
        await dry_run(*planned(NEVER, "stages.rlvr.evaluation=null"))


@pytest.mark.parametrize("part", ["data", "evaluation.data"])
def test_rows_without_a_reference_are_refused_while_planning(planned: Planned, task: Path, part: str) -> None:
    data = f"stages.rlvr.{part}={{source: jsonl, path: {task}/demonstrations.jsonl}}"
    with pytest.raises(DataError, match=r"demonstrations.jsonl:1: no reference for grader exact"):
        planned(data)


def test_a_graders_function_is_looked_up_while_planning(planned: Planned) -> None:
    with pytest.raises(PlanError, match="brevty"):
        planned("stages.rlvr.rewards.grader={name: python, options: {callable: 'json:brevty'}}")


async def test_a_step_that_trains_on_nothing_goes_on(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when every response of a batch is masked: the learner then reports no gradient and no rate."""
    monkeypatch.setattr("roll_launch.dry_run.DRY_METRICS", {})
    results = await dry_run(*planned())
    assert results["rlvr"].steps == 1
