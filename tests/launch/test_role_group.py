"""Workers that die or hang are replaced, within bounds, and whoever counts on them is told."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from roll_launch.config import HealthConfig
from roll_launch.failures import RoleDied, RoleError
from roll_launch.role_group import RoleGroup, RoleGroupError
from roll_launch.roles import Pulse
from roll_launch.waits import Waits

QUICK = HealthConfig(every_s=0.01, answer_s=0.05, stall_s=0.1, max_replacements=2)


class _Worker:
    """Answers as a test says."""

    def __init__(self, answer: Callable[[], Awaitable[Pulse]] | None = None) -> None:
        self._answer = answer

    async def pulse(self) -> Pulse:
        return await self._answer() if self._answer else Pulse(busy=False, progress=0)


class _Crew:
    """A group whose replacements come from `spares`, then are healthy."""

    def __init__(
        self, *workers: _Worker, spares: list[_Worker | Exception] | None = None, **health: float
    ) -> None:
        self.spares = spares or []
        self.told: list[str] = []
        self.group: RoleGroup[_Worker] = RoleGroup(
            "rollout actor",
            start=self._start,
            health=QUICK.model_copy(update=health),
            waits=Waits(),
            start_deadline_s=1.0,
        )
        self.group.live = {f"actor-{index}": worker for index, worker in enumerate(workers)}
        self.group.bring_up_with(self._bring_up)

    async def _start(self, name: str) -> _Worker:
        await asyncio.sleep(0)
        spare = self.spares.pop(0) if self.spares else _Worker()
        if isinstance(spare, Exception):
            raise spare
        self.told.append(f"{name} restarted")
        return spare

    async def _bring_up(self, name: str, worker: _Worker) -> None:
        assert worker is not self.group.live.get(name)
        self.told.append(f"{name} brought up")

    async def run(self, seconds: float = 0.3) -> None:
        with self.group.told(
            lambda name, why: self.told.append(f"{name} lost"),
            lambda name: self.told.append(f"{name} joined"),
        ):
            async with self.group:
                await asyncio.sleep(seconds)


async def test_a_lost_worker_leaves_at_once_and_its_replacement_joins_when_it_is_brought_up() -> None:
    first, second = _Worker(), _Worker()
    crew = _Crew(first, second)

    async def lose() -> None:
        await asyncio.sleep(0.02)
        crew.group.lost("actor-0", first, "died")
        assert list(crew.group.live) == ["actor-1"]

    await asyncio.gather(crew.run(), lose())
    assert crew.told == ["actor-0 lost", "actor-0 restarted", "actor-0 brought up", "actor-0 joined"]
    assert crew.group.losses == {"actor-0": 1}


async def test_only_the_first_report_of_a_worker_counts() -> None:
    first = _Worker()
    crew = _Crew(first)

    async def lose() -> None:
        await asyncio.sleep(0.02)
        for _ in range(5):
            crew.group.lost("actor-0", first, "died")
        await crew.group.some()
        crew.group.lost("actor-0", first, "died, as somebody hears only now")

    await asyncio.gather(crew.run(), lose())
    assert crew.group.losses == {"actor-0": 1}
    assert crew.group.live["actor-0"] is not first


async def test_a_worker_that_gives_no_sign_of_life_is_replaced() -> None:
    async def silent() -> Pulse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    crew = _Crew(_Worker(silent))
    await crew.run()
    assert crew.told[:2] == ["actor-0 lost", "actor-0 restarted"]
    assert crew.group.losses == {"actor-0": 1}


async def test_a_worker_found_dead_by_its_pulse_is_replaced() -> None:
    async def dead() -> Pulse:
        raise RoleDied("actor-0", "pulse", "killed")

    crew = _Crew(_Worker(dead))
    await crew.run()
    assert crew.group.losses == {"actor-0": 1}


@pytest.mark.parametrize(("busy", "replaced"), [(True, 1), (False, 0)])
async def test_only_a_busy_worker_has_to_make_progress(busy: bool, replaced: int) -> None:
    async def stuck() -> Pulse:
        return Pulse(busy=busy, progress=5)

    crew = _Crew(_Worker(stuck))
    await crew.run()
    assert crew.group.losses.total() == replaced


async def test_a_replacement_that_dies_while_it_starts_is_counted_and_started_again() -> None:
    first = _Worker()
    crew = _Crew(first, spares=[RoleDied("actor-0", "start", "no memory")])

    async def lose() -> None:
        await asyncio.sleep(0.02)
        crew.group.lost("actor-0", first, "died")

    await asyncio.gather(crew.run(), lose())
    assert crew.told == ["actor-0 lost", "actor-0 restarted", "actor-0 brought up", "actor-0 joined"]
    assert crew.group.losses == {"actor-0": 2}


async def test_a_worker_that_dies_in_its_first_start_is_started_again() -> None:
    crew = _Crew(spares=[RoleDied("actor-0", "start", "no memory")])
    await crew.group.start("actor-0")
    assert list(crew.group.live) == ["actor-0"] and crew.group.losses == {"actor-0": 1}


async def test_a_worker_that_cannot_start_is_not_tried_again_and_again() -> None:
    crew = _Crew(spares=[RoleError("actor-0", "start", "no such model")])
    with pytest.raises(RoleError, match="no such model"):
        await crew.group.start("actor-0")
    dying = _Crew(spares=[RoleDied("actor-0", "start", "killed") for _ in range(3)])
    with pytest.raises(RoleGroupError, match=r"lost 3 times \(actor-0 3\), allowed are 2"):
        await dying.group.start("actor-0")


async def test_too_many_losses_end_the_body_with_the_counts() -> None:
    async def dead() -> Pulse:
        raise RoleDied("actor-0", "pulse", "killed by signal 9")

    crew = _Crew(_Worker(dead), _Worker(), spares=[_Worker(dead), _Worker(dead)])
    with pytest.raises(
        RoleGroupError, match=r"lost 3 times \(actor-0 3\), allowed are 2 .*killed by signal 9"
    ):
        await crew.run(5.0)


async def test_what_goes_wrong_when_a_replacement_is_brought_up_ends_the_body() -> None:
    first = _Worker()
    crew = _Crew(first)

    async def refuse(name: str, worker: _Worker) -> None:
        raise ValueError("wrong bytes")

    crew.group.bring_up_with(refuse)

    async def lose() -> None:
        await asyncio.sleep(0.02)
        crew.group.lost("actor-0", first, "died")

    with pytest.raises(ValueError, match="wrong bytes"):
        await asyncio.gather(crew.run(5.0), lose())


async def test_a_replacement_that_is_not_there_in_time_is_lost_like_any_other() -> None:
    first = _Worker()
    crew = _Crew(first)
    hanging = [True]

    async def hang_once(name: str, worker: _Worker) -> None:
        if hanging:
            hanging.clear()
            await asyncio.Event().wait()

    crew.group.bring_up_with(hang_once)

    async def lose() -> None:
        await asyncio.sleep(0.02)
        crew.group.lost("actor-0", first, "died")

    await asyncio.gather(crew.run(2.0), lose())
    assert crew.told == ["actor-0 lost", "actor-0 restarted", "actor-0 restarted", "actor-0 joined"]
    assert crew.group.losses == {"actor-0": 2}


async def test_replacements_that_are_never_there_in_time_end_the_body_with_the_counts() -> None:
    first = _Worker()
    crew = _Crew(first, max_replacements=1)

    async def forever(name: str, worker: _Worker) -> None:
        await asyncio.Event().wait()

    crew.group.bring_up_with(forever)

    async def lose() -> None:
        await asyncio.sleep(0.02)
        crew.group.lost("actor-0", first, "died")

    with pytest.raises(RoleGroupError, match=r"lost 2 times.*replacement of actor-0 did not end within 1 s"):
        await asyncio.gather(crew.run(5.0), lose())


async def test_a_cancellation_from_outside_stays_one() -> None:
    crew = _Crew(_Worker())
    task = asyncio.create_task(crew.run(5.0))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_of_the_body_comes_through_as_it_is() -> None:
    crew = _Crew(_Worker())
    with pytest.raises(KeyError):
        async with crew.group:
            raise KeyError("mine")
    assert len(asyncio.all_tasks()) == 1


async def test_workers_take_turns_and_are_waited_for_when_there_is_none() -> None:
    first, second = _Worker(), _Worker()
    crew = _Crew(first, second)
    async with crew.group:
        assert [(await crew.group.next())[0] for _ in range(3)] == ["actor-0", "actor-1", "actor-0"]
        crew.group.lost("actor-0", first, "died")
        assert [(await crew.group.next())[1] for _ in range(2)] == [second, second]
        crew.group.lost("actor-1", second, "died")
        name, worker = await asyncio.wait_for(crew.group.next(), 1.0)
        assert worker is crew.group.live[name]
