"""Generation that goes on while the policy is trained: bounded staleness, nothing lost, all settings run."""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from faulty_roles import FaultyRuntime, ledger, run_stage
from roll_launch.config import ConfigError, RlvrStage, RunConfig
from roll_launch.dry_run import DryTrainer, dry_run
from roll_launch.pipelines import specs
from roll_launch.pipelines.scheduling import training_policy
from roll_launch.plan import StagePlan
from roll_launch.run_directory import RunDirectory
from roll_scheduler import AdaptiveDeadline, MostUncertain

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]


class _Slow(FaultyRuntime):
    """Generations of unequal length, and a trainer that takes its time.

    `during` counts the generations that ended while the policy was trained.
    """

    def __init__(self) -> None:
        super().__init__()
        self.during = 0
        self._training = False

    async def start_actor(self, name, spec):
        actor = await super().start_actor(name, spec)
        generate = actor.generate

        async def slow(request, partial=None):
            await asyncio.sleep(0.002 * (request.seed % 30))
            self.during += self._training
            return await generate(request, partial)

        actor.generate = slow
        return actor

    async def start_trainer(self, spec, critics=()):
        trainer = DryTrainer()
        step = trainer.policy_step

        async def slow(samples, teachers=()):
            self._training = True
            await asyncio.sleep(0.05)
            self._training = False
            return await step(samples, teachers)

        trainer.policy_step = slow
        return trainer


async def _run(planned: Planned, tmp_path: Path, *overrides: str) -> tuple[_Slow, RunDirectory]:
    config, (plan,) = planned("stages.rlvr.steps=6", "stages.rlvr.evaluation=null", *overrides)
    directory = RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / "run")
    runtime = _Slow()
    result = await run_stage(config, plan, directory, runtime)
    assert result.steps == 6
    return runtime, directory


async def test_on_policy_nothing_is_generated_while_the_policy_is_trained(
    planned: Planned, tmp_path: Path
) -> None:
    runtime, directory = await _run(planned, tmp_path)
    assert runtime.during == 0
    assert [entry[-1] for entry in ledger(directory)] == [step for step in range(6) for _ in range(8)]


@pytest.mark.parametrize("in_flight", ["keep", "abort", "stop"])
@pytest.mark.parametrize("bound", [0.5, 1, 2])
async def test_generation_goes_on_while_the_policy_is_trained_within_the_bound(
    planned: Planned, tmp_path: Path, bound: float, in_flight: str
) -> None:
    runtime, directory = await _run(
        planned,
        tmp_path,
        f"stages.rlvr.rollout.asynchrony={{max_staleness: {bound}, in_flight: {in_flight}}}",
    )
    assert runtime.during > 0
    entries = ledger(directory)
    assert len(entries) == 48
    assert len({(group, member) for _, group, member, *_ in entries}) == 48
    # Step 1 trains at version 0.
    assert all(0 <= step - 1 - version <= bound + 0.5 for step, *_, version in entries)
    assert any(step - 1 > version for step, *_, version in entries)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    assert max(line.get("scheduler/staleness", 0) for line in lines) > 0


def test_trainer_and_replicas_share_the_processors_when_they_compute_at_the_same_time(
    planned: Planned,
) -> None:
    def threads(*overrides: str) -> tuple[int, int]:
        _, (plan,) = planned("stages.rlvr.rollout.replicas=3", *overrides)
        trainer = specs.policy_trainer(plan, processors=8, checkpoint=None)
        return trainer.threads, specs.actor(plan, processors=8).threads

    assert threads() == (8, 2)
    assert threads("stages.rlvr.rollout.asynchrony={}") == (2, 2)
    assert threads("stages.rlvr.rollout.asynchrony={carry: true}") == (8, 2)


def test_the_policy_is_that_of_the_configuration(stage: Callable[..., RlvrStage]) -> None:
    policy = training_policy(
        stage(
            "stages.rlvr.rollout.asynchrony={max_staleness: 1.5, stale: requeue}",
            "stages.rlvr.rollout.filters={truncated_share: 0.5}",
            "stages.rlvr.rollout.scheduling={order: longest_first, router: power_of_two, kv_tokens: 99,"
            " weigh_health: true, quarantine_after: 0}",
            "stages.rlvr.rewards.adaptive_deadline={least_s: 1, factor: 2, most_s: 9}",
        )
    )
    assert (policy.max_staleness, policy.stale) == (1.5, "requeue")
    assert [each.name for each in policy.filters] == ["truncated_share"]
    assert (policy.order, policy.router, policy.kv_tokens) == ("longest_first", "power_of_two", 99)
    assert (policy.weigh_health, policy.quarantine_after) == (True, 0)
    assert policy.adaptive_grading == AdaptiveDeadline(least_s=1, factor=2, most_s=9)
    uncertain = stage("stages.rlvr.rollout.filters={most_uncertain: 0.25}")
    assert training_policy(uncertain).batch_filter == MostUncertain(share=0.25)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.asynchrony={max_staleness: 0}", "max_staleness"),
        ("rollout.scheduling={router: nearest}", "unknown router.*least_loaded"),
        ("rollout.scheduling={quarantine_after: 1}", "blames all that ran"),
        (
            "rollout.asynchrony={} stages.rlvr.rollout.over_provision={prompts: 1, defer: true}",
            "goes on anyway",
        ),
        ("rollout.asynchrony={} stages.rlvr.rollout.filters={most_uncertain: 0.5}", "one on-policy step"),
        ("rewards.adaptive_deadline={least_s: 3, most_s: 2}", "below least_s"),
        ("curriculum={low: 0.9, high: 0.1}", "above high"),
    ],
)
def test_what_excludes_each_other_is_refused(
    stage: Callable[..., RlvrStage], override: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        stage(*f"stages.rlvr.{override}".replace(" stages.", "\nstages.").split("\n"))


@pytest.mark.parametrize(
    "override",
    [
        "rollout.asynchrony={max_staleness: 2}",
        "rollout.asynchrony={max_staleness: 0.5, stale: requeue, in_flight: abort}",
        "rollout.asynchrony={in_flight: stop}",
        "rollout.asynchrony={carry: true}",
        "rollout.scheduling={order: longest_first, router: prefix_affinity}",
        "rollout.filters={most_uncertain: 0.5}",
        "rollout.over_provision={prompts: 1, responses: 1, defer: true}",
        "rewards.adaptive_deadline={}",
        "curriculum={}",
    ],
)
async def test_every_setting_runs_dry(planned: Planned, override: str) -> None:
    results = await dry_run(*planned(f"stages.rlvr.{override}"))
    assert results["rlvr"].steps == 1
