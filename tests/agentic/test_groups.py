"""Groups of episodes: seeds, redundancy, replacements, in virtual time where times matter."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from roll_agentic import (
    AgenticError,
    EnvironmentFault,
    Episode,
    GroupPlan,
    NumberGuessing,
    RandomPolicy,
    run_episode,
    run_groups,
)

VECTORS = json.loads(
    (Path(__file__).parent.parent / "data" / "vectors" / "redundant_env_rollout.json").read_text()
)


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            # Threads answer in real time: wait a little for them before the clock jumps.
            if events := self._selector.select(0.05):  # type: ignore[attr-defined]
                self._process_events(events)  # type: ignore[attr-defined]
            else:
                self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


async def quick(environment, seed: int, group: int, member: int) -> Episode:
    return await run_episode(environment, RandomPolicy(), seed=seed, max_turns=5)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_first_members_and_groups_to_finish_are_kept(case: dict) -> None:
    times = list(case["inputs"]["finish_times"].values())
    needed, size = case["params"]["groups_needed"], case["params"]["group_size_needed"]
    plan = GroupPlan(
        groups=needed, size=size, extra_groups=len(times) - needed, extra_members=len(times[0]) - size
    )
    stopped = []

    async def play(environment, seed: int, group: int, member: int) -> Episode:
        try:
            await asyncio.sleep(times[group][member])
        except asyncio.CancelledError:
            stopped.append((group, member))
            raise
        return await quick_without_thread(seed)

    async def quick_without_thread(seed: int) -> Episode:
        class Over:
            async def reset(self, *, seed: int):
                return "", {}

            async def step(self, action: str):
                return "", 1.0, True, False, {}

        return await run_episode(Over(), RandomPolicy(), seed=seed, max_turns=1)

    async def make_nothing():
        groups = await run_groups(plan, make=NumberGuessing, play=play, seeds=range(len(times)))
        return groups, asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        groups, ended = runner.run(make_nothing())
    expected = case["expected"]
    assert [f"g{group.group}" for group in groups] == expected["used_groups"]
    assert {f"g{group.group}": list(group.members) for group in groups} == expected["kept_members"]
    assert ended == pytest.approx(expected["stop_time"], abs=0.5)
    kept = sum(len(group.episodes) for group in groups)
    assert len(stopped) <= len(times) * len(times[0]) - kept


async def test_members_of_a_group_share_its_seed() -> None:
    groups = await run_groups(GroupPlan(groups=2, size=3), make=NumberGuessing, play=quick, seeds=[10, 20])
    for group in groups:
        assert {episode.seed for episode in group.episodes} == {group.seed}
    assert {group.seed for group in groups} == {10, 20}


class Broken(NumberGuessing):
    def step(self, action: str, /):
        raise OSError("lost")


async def test_member_that_breaks_is_played_again_with_a_fresh_environment() -> None:
    made = []

    def make():
        made.append(Broken() if not made else NumberGuessing())
        return made[-1]

    (group,) = await run_groups(GroupPlan(groups=1, size=2), make=make, play=quick, seeds=[1])
    assert len(made) == 3
    assert len(group.episodes) == 2
    assert [failure.message for failure in group.failures] == ["Broken.step raised OSError: lost"]


@pytest.mark.parametrize(("incomplete", "kept"), [("drop", []), ("keep", [3])])
async def test_incomplete_group_is_dropped_or_kept_by_policy(incomplete: str, kept: list[int]) -> None:
    broken = iter([True, False, False, False])
    plan = GroupPlan(groups=1, size=4, replacements=0, incomplete=incomplete)  # type: ignore[arg-type]
    groups = await run_groups(
        plan, make=lambda: Broken() if next(broken) else NumberGuessing(), play=quick, seeds=[1]
    )
    assert [len(group.episodes) for group in groups] == kept


async def test_group_all_of_whose_members_break_ends_and_is_dropped() -> None:
    assert await run_groups(GroupPlan(groups=1, size=2), make=Broken, play=quick, seeds=[1]) == []

    def fails():
        raise OSError("no room")

    assert await run_groups(GroupPlan(groups=1, size=1), make=fails, play=quick, seeds=[1]) == []


async def test_concurrency_is_bounded_and_environments_are_closed() -> None:
    inside, most, closed = 0, 0, []

    class Closing(NumberGuessing):
        def close(self) -> None:
            closed.append(self)

    async def play(environment, seed: int, group: int, member: int) -> Episode:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1
        return await quick(environment, seed, group, member)

    await run_groups(GroupPlan(groups=4, size=3, concurrency=2), make=Closing, play=play, seeds=range(4))
    assert most == 2
    assert len(closed) == 12


async def test_error_of_the_caller_stops_everything_and_is_raised() -> None:
    async def play(environment, seed: int, group: int, member: int) -> Episode:
        if group == 1:
            raise EnvironmentFault("bug", "of the caller")
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(EnvironmentFault, match="of the caller"):
        await run_groups(GroupPlan(groups=2, size=1), make=NumberGuessing, play=play, seeds=[0, 1])


def test_plans_out_of_range_are_refused() -> None:
    for options in (
        {"groups": 0},
        {"size": 0},
        {"extra_groups": -1},
        {"concurrency": 0},
        {"incomplete": "no"},
    ):
        with pytest.raises(AgenticError):
            GroupPlan(**{"groups": 1, "size": 1, **options})  # type: ignore[arg-type]
    with pytest.raises(AgenticError, match="a seed for each of 2 groups, got 1"):
        asyncio.run(run_groups(GroupPlan(groups=2, size=1), make=NumberGuessing, play=quick, seeds=[1]))


async def test_environment_that_hangs_when_it_is_made_costs_its_member_only() -> None:
    hangs = iter([True, False, False])

    def make() -> NumberGuessing:
        if next(hangs):
            threading.Event().wait()
        return NumberGuessing()

    plan = GroupPlan(groups=1, size=2, make_s=0.2)
    (group,) = await run_groups(plan, make=make, play=quick, seeds=[1])
    assert len(group.episodes) == 2
    assert "DeadlineMissed" in group.failures[0].message
