"""The prompts of a stage: in turn, by shares, by how hard they are, and the same again after a resume."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path

import pytest
from faulty_roles import FaultyRuntime, ledger, run_stage
from roll_launch.config import ConfigError, RunConfig
from roll_launch.failures import first_cause
from roll_launch.pipelines.prompt_supply import PromptSupply
from roll_launch.plan import RlvrPlan, StagePlan
from roll_launch.run_directory import RunDirectory

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]


@pytest.fixture
def mixture(planned: Planned, task: Path) -> Callable[..., tuple[RunConfig, RlvrPlan]]:
    """Two domains, three prompts of the first for one of the second."""

    def plan(*overrides: str, quota: str = "") -> tuple[RunConfig, RlvrPlan]:
        jsonl = f"{{source: jsonl, path: {task}/train.jsonl, limit: 20}}"
        domains = f"[{{name: sort, weight: 3, data: {jsonl}}}, {{name: again, data: {jsonl}{quota}}}]"
        config, (only,) = planned(f"stages.rlvr.data={{source: mixture, domains: {domains}}}", *overrides)
        assert isinstance(only, RlvrPlan)
        return config, only

    return plan


def test_without_mixture_and_curriculum_every_prompt_comes_once_an_epoch(planned: Planned) -> None:
    _, (plan,) = planned()
    drawn = list(islice(PromptSupply(plan), 128))
    assert [prompt.key for prompt in drawn[:64]] != [prompt.key for prompt in drawn[64:]]
    assert {prompt.key for prompt in drawn[:64]} == {str(number) for number in range(64)}
    later = islice(PromptSupply(plan, first=100), 28)
    assert [prompt.key for prompt in later] == [prompt.key for prompt in drawn[100:]]
    assert PromptSupply(plan).state(100) == {}


def test_domains_have_their_shares_to_within_one_prompt(mixture) -> None:
    _, plan = mixture()
    supply = PromptSupply(plan)
    seen: Counter[str] = Counter()
    for number in range(1, 200):
        seen[next(supply).row.domain] += 1
        assert abs(seen["sort"] - 0.75 * number) <= 1
    assert len({prompt.key for prompt in plan.prompts.prompts}) == 40


def test_a_quota_of_each_step_is_kept(mixture) -> None:
    _, plan = mixture("stages.rlvr.rollout.prompts_per_step=8", quota=", least: 4")
    supply = PromptSupply(plan)
    for _ in range(10):
        assert Counter(next(supply).row.domain for _ in range(8)) == {"sort": 4, "again": 4}


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (", least: 3", "quotas that no step of rollout.prompts_per_step"),
        (", least: 2, most: 1", "below least"),
    ],
)
def test_a_quota_that_cannot_be_kept_is_refused(mixture, quota: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mixture(quota=quota)


def test_domains_of_one_name_are_refused(planned: Planned, task: Path) -> None:
    one = f"{{name: a, data: {{source: jsonl, path: {task}/train.jsonl}}}}"
    with pytest.raises(ConfigError, match="names two domains alike"):
        planned(f"stages.rlvr.data={{source: mixture, domains: [{one}, {one}]}}")


def test_a_curriculum_turns_to_prompts_that_are_neither_too_hard_nor_too_easy(planned: Planned) -> None:
    _, (plan,) = planned("stages.rlvr.curriculum={low: 0.3, high: 0.7, explore: 0.2}")
    supply = PromptSupply(plan)
    rates = {str(number): 0.5 if number < 10 else float(number % 2) for number in range(64)}
    later: Counter[float] = Counter()
    for group in range(300):
        prompt = next(supply)
        supply.observe(prompt, [rates[prompt.key]] * 4)
        if group >= 200:
            later[rates[prompt.key]] += 1
    assert later[0.5] > 70
    counts = supply.metrics()
    assert sum(counts.values()) == 64
    assert 1 <= counts["curriculum/inside"] <= 10 < counts["curriculum/outside"]


def test_a_resumed_curriculum_draws_what_was_under_way_again_and_then_the_same(
    planned: Planned,
) -> None:
    _, (plan,) = planned("stages.rlvr.curriculum={}")
    supply = PromptSupply(plan)
    for _ in range(40):
        supply.observe(next(supply), [0.0, 1.0])
    under_way = [next(supply).key for _ in range(5)]
    state = json.loads(json.dumps(supply.state(40)))
    after = [next(supply).key for _ in range(30)]
    resumed = PromptSupply(plan, first=40, state=state)
    assert [next(resumed).key for _ in range(35)] == under_way + after


async def test_a_stage_with_domains_and_curriculum_resumes_to_the_ledger_of_an_undisturbed_one(
    mixture, tmp_path: Path
) -> None:
    settings = ("stages.rlvr.curriculum={}", "stages.rlvr.steps=6", "stages.rlvr.checkpoint.every=2")
    config, plan = mixture(*settings, "stages.rlvr.evaluation=null")

    def claimed(name: str) -> RunDirectory:
        return RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / name)

    reference, broken = claimed("reference"), claimed("broken")
    result = await run_stage(config, plan, reference, FaultyRuntime())
    assert result.steps == 6

    def fifth(role: str, method: str, number: int) -> None:
        if (role, method) == ("trainer", "policy_step"):
            fifth.seen += 1
            if fifth.seen == 5:
                raise RuntimeError("power cut")

    fifth.seen = 0
    with pytest.raises(BaseException) as ended:
        await run_stage(config, plan, broken, FaultyRuntime(fifth))
    assert "power cut" in str(first_cause(ended.value))
    await run_stage(config, plan, broken, FaultyRuntime(), resume=True)
    assert ledger(broken) == ledger(reference)
    lines = [json.loads(line) for line in reference.metrics.read_text().splitlines()]
    shares = [line["rollout/share/sort"] for line in lines if "rollout/share/sort" in line]
    assert shares and all(0 < share <= 1 for share in shares)
    assert all("curriculum/sort/unseen" in line for line in lines if "rollout/share/sort" in line)
