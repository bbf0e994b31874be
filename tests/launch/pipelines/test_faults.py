"""Roles that die in the middle of a stage: replaced, re-synced, and nothing lost or doubled."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from faulty_roles import Faulty, FaultyRuntime, ledger, run_stage
from roll_launch.config import RunConfig
from roll_launch.failures import RoleDied, first_cause
from roll_launch.plan import StagePlan
from roll_launch.role_group import RoleGroupError
from roll_launch.roles import Pulse
from roll_launch.run_directory import RunDirectory

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]
THREE = ("stages.rlvr.steps=3", "stages.rlvr.checkpoint.every=1", "stages.rlvr.health.max_replacements=1000")


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Callable[[], RunDirectory]]:
    """New run directories."""
    numbers = iter(range(10_000))

    def claim() -> RunDirectory:
        return RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / f"d{next(numbers)}")

    yield claim


@pytest.fixture
async def undisturbed(planned: Planned, directories: Callable[[], RunDirectory]) -> list[tuple[object, ...]]:
    """The ledger of a run without faults."""
    config, (plan,) = planned(*THREE)
    directory = directories()
    await run_stage(config, plan, directory, FaultyRuntime())
    return ledger(directory)


def _dies(role: str, method: str, at: int) -> Callable[[str, str, int], None]:
    """The `at`-th call of a method of a role kills it, counted from 0."""
    seen = 0

    def fault(who: str, what: str, number: int) -> None:
        nonlocal seen
        if (who, what) == (role, method):
            seen += 1
            if seen == at + 1:
                raise RoleDied(who, what, "killed")

    return fault


@pytest.mark.parametrize(
    ("role", "method", "at"),
    [
        ("actor-0", "generate", 1),
        ("actor-0", "generate", 30),
        ("actor-0", "update_weights", 0),
        ("actor-0", "update_weights", 2),
        ("actor-1", "generate", 12),
        ("reward-0", "grade", 0),
        ("reward-0", "grade", 25),
        ("reward-0", "record", 1),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_worker_that_dies_is_replaced_and_the_ledger_is_that_of_a_run_without_faults(
    planned: Planned,
    directories: Callable[[], RunDirectory],
    undisturbed: list[tuple[object, ...]],
    role: str,
    method: str,
    at: int,
    replicas: int,
) -> None:
    if role == "actor-1" and replicas == 1:
        pytest.skip("there is no actor-1")
    config, (plan,) = planned(*THREE, f"stages.rlvr.rollout.replicas={replicas}")
    directory, runtime = directories(), FaultyRuntime(_dies(role, method, at))
    result = await run_stage(config, plan, directory, runtime)
    assert ledger(directory) == undisturbed
    assert (result.steps, result.samples) == (3, 24)
    assert runtime.calls.starts[role] == 2
    assert sum(runtime.calls.starts.values()) == 1 + replicas + 1 + 1


async def test_a_replacement_gets_the_published_weights_before_it_generates(
    planned: Planned, directories: Callable[[], RunDirectory]
) -> None:
    config, (plan,) = planned(*THREE)
    runtime = FaultyRuntime(_dies("actor-0", "generate", 25))
    await run_stage(config, plan, directories(), runtime)
    calls = [method for who, method in runtime.calls.made if who == "actor-0" and method != "pulse"]
    again = calls.index("start", 1)
    assert calls[again : again + 3] == ["start", "update_weights", "generate"]


async def test_every_worker_dying_now_and_then_loses_and_doubles_nothing(
    planned: Planned, directories: Callable[[], RunDirectory], undisturbed: list[tuple[object, ...]]
) -> None:
    def now_and_then(who: str, what: str, number: int) -> None:
        if who != "trainer" and what not in ("start", "pulse", "abort") and number % 17 == 16:
            raise RoleDied(who, what, "killed")

    config, (plan,) = planned(*THREE, "stages.rlvr.rollout.replicas=2", "stages.rlvr.rewards.workers=2")
    directory, runtime = directories(), FaultyRuntime(now_and_then)
    await run_stage(config, plan, directory, runtime)
    assert ledger(directory) == undisturbed
    assert sum(runtime.calls.starts.values()) > 5 + 5


async def test_completions_that_kill_their_grader_are_dropped_alone(
    planned: Planned, directories: Callable[[], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, (plan,) = planned(*THREE, "stages.rlvr.evaluation=null", "stages.rlvr.steps=32")
    poison = plan.prompts.prompts[5].row.reference

    async def grade(faulty: Faulty, completion, reference, columns):
        await asyncio.sleep(0)
        faulty._dead |= reference == poison
        if faulty._dead:
            raise RoleDied("reward-0", "grade", "segmentation fault")
        return await faulty._role.grade(completion, reference, columns)

    monkeypatch.setattr(Faulty, "grade", grade, raising=False)
    directory = directories()
    result = await run_stage(config, plan, directory, FaultyRuntime())
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    # Its group is given up when two of the four members are left, and another takes its place.
    assert 3 * 2 <= sum(line.get("rollout/failed/reward_worker", 0) for line in lines) <= 4 * 2
    assert [line["rollout/dropped/failed"] for line in lines if "rollout/dropped/failed" in line] == [1]
    assert (result.steps, result.samples) == (32, 32 * 8)
    recorded = map(json.loads, directory.rollouts("rlvr").read_text().splitlines())
    assert all(line["reference"] != poison for line in recorded)


async def test_too_many_deaths_end_the_run_with_the_counts(
    planned: Planned, directories: Callable[[], RunDirectory]
) -> None:
    def always(who: str, what: str, number: int) -> None:
        if (who, what) == ("actor-0", "generate") and number > 60:
            raise RoleDied(who, what, "out of memory")

    config, (plan,) = planned(*THREE, "stages.rlvr.health.max_replacements=3")
    with pytest.raises(RoleGroupError, match=r"lost 4 times \(actor-0 4\), allowed are 3 .*out of memory"):
        await run_stage(config, plan, directories(), FaultyRuntime(always))


@pytest.mark.parametrize("role", ["actor-0", "reward-0"])
async def test_a_worker_that_hangs_is_found_out_and_replaced(
    planned: Planned,
    directories: Callable[[], RunDirectory],
    undisturbed: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    role: str,
) -> None:
    hung: list[Faulty] = []

    async def hang_or(faulty: Faulty, method: str, *arguments):
        if faulty._name == role and not hung and len(faulty._calls.made) > 60:
            hung.append(faulty)
        while faulty in hung and faulty._calls.starts[role] == 1:
            await asyncio.sleep(0.01)
        if faulty in hung:
            raise RoleDied(role, method, "killed because it hung")
        faulty._calls.made.append((faulty._name, method))
        return await getattr(faulty._role, method)(*arguments)

    for method in ("generate", "grade", "pulse"):

        async def call(faulty: Faulty, *arguments, method: str = method) -> Pulse:
            return await hang_or(faulty, method, *arguments)

        monkeypatch.setattr(Faulty, method, call, raising=False)
    config, (plan,) = planned(*THREE, "stages.rlvr.health={every_s: 0.02, answer_s: 0.1}")
    directory, runtime = directories(), FaultyRuntime()
    await run_stage(config, plan, directory, runtime)
    assert len(hung) == 1 and runtime.calls.starts[role] == 2
    assert ledger(directory) == undisturbed


async def test_a_run_that_fails_at_any_call_of_the_trainer_resumes_to_the_same_ledger(
    planned: Planned, directories: Callable[[], RunDirectory], undisturbed: list[tuple[object, ...]]
) -> None:
    config, (plan,) = planned(*THREE, "stages.rlvr.checkpoint.every=2")
    probe = FaultyRuntime()
    await run_stage(config, plan, directories(), probe)
    calls = sum(who == "trainer" for who, _ in probe.calls.made)
    for at in range(1, calls):
        count = 0

        def fault(who: str, what: str, number: int, at: int = at) -> None:
            nonlocal count
            if who == "trainer":
                count += 1
                if count == at + 1:
                    raise RoleDied(who, what, "killed")

        directory = directories()
        with pytest.raises(BaseException) as caught:
            await run_stage(config, plan, directory, FaultyRuntime(fault))
        assert isinstance(first_cause(caught.value), RoleDied)
        resumed = await run_stage(config, plan, directory, FaultyRuntime(), resume=True)
        assert ledger(directory) == undisturbed
        assert (resumed.steps, resumed.samples) == (3, 24)
        steps = [
            line["step"]
            for line in map(json.loads, directory.metrics.read_text().splitlines())
            if "actor/lr" in line
        ]
        assert steps == [1, 2, 3]


async def test_tail_rounds_train_on_every_prompt_once_an_epoch_also_over_a_resume(
    planned: Planned, directories: Callable[[], RunDirectory]
) -> None:
    """64 prompts, 4 a step: 16 steps are an epoch, of which every prompt is part."""
    tail = (
        "stages.rlvr.rollout.over_provision={prompts: 2, responses: 1, defer: true}",
        "stages.rlvr.rollout.prompts_per_step=4",
        "stages.rlvr.evaluation=null",
        "stages.rlvr.steps=16",
        "stages.rlvr.checkpoint.every=1",
        "stages.rlvr.alarms=null",
    )
    config, (plan,) = planned(*tail)
    directory, count = directories(), 0

    def fault(who: str, what: str, number: int) -> None:
        nonlocal count
        if (who, what) == ("trainer", "policy_step"):
            count += 1
            if count == 8:
                raise RoleDied(who, what, "killed")

    with pytest.raises(RoleDied):
        await run_stage(config, plan, directory, FaultyRuntime(fault))
    await run_stage(config, plan, directory, FaultyRuntime(), resume=True)
    lines = [json.loads(line) for line in directory.rollouts("rlvr").read_text().splitlines()]
    assert len(lines) == 16 * 4 * 4
    groups = {line["group"] for line in lines}
    deferred = json.loads((directory.finished("rlvr") / "progress.json").read_text())["scheduler"]["deferred"]
    # What is still put off at the end of the last step is the only part of the epoch that is missing.
    assert set(range(64)) - groups <= set(deferred)
    assert all(
        sum((line["step"], line["group"]) == key for line in lines) == 4
        for key in {(line["step"], line["group"]) for line in lines}
    )
