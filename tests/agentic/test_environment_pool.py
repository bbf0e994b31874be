"""Environments that are lent: how many, again and again, and never one that broke."""

import asyncio

import pytest
from roll_agentic import AgenticError, EnvironmentFault, EnvironmentPool, InlineEnvironment, NumberGuessing


class Counted(NumberGuessing):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def none_made() -> None:
    Counted.made = 0


async def test_an_environment_is_lent_again() -> None:
    pool = EnvironmentPool(Counted, size=2)
    for _ in range(5):
        async with pool.lease():
            pass
    assert Counted.made == 1


async def test_no_more_are_lent_at_a_time_than_the_pool_holds() -> None:
    pool, at_once, most = EnvironmentPool(Counted, size=2), 0, 0

    async def use() -> None:
        nonlocal at_once, most
        async with pool.lease():
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1

    await asyncio.gather(*(use() for _ in range(7)))
    assert (most, Counted.made) == (2, 2)


async def test_one_that_is_discarded_or_whose_user_failed_is_closed_and_made_anew() -> None:
    pool = EnvironmentPool(Counted, size=1)
    async with pool.lease() as lease:
        lease.discard()
    assert isinstance(lease.environment, Counted) and lease.environment.closed
    with pytest.raises(ValueError, match="mine"):
        async with pool.lease() as lease:
            raise ValueError("mine")
    assert isinstance(lease.environment, Counted) and lease.environment.closed
    async with pool.lease():
        pass
    assert Counted.made == 3


async def test_closing_closes_what_nobody_has() -> None:
    pool = EnvironmentPool(Counted, size=1)
    async with pool.lease() as lease:
        pass
    await pool.close()
    assert isinstance(lease.environment, Counted) and lease.environment.closed


async def test_an_environment_that_cannot_be_made_is_a_fault_and_keeps_no_place() -> None:
    def fails() -> NumberGuessing:
        raise RuntimeError("no ice")

    pool = EnvironmentPool(fails, size=1)
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="cannot be made: RuntimeError: no ice"):
            async with pool.lease():
                pass


async def test_one_that_takes_too_long_to_make_is_a_fault() -> None:
    import time

    def slow() -> NumberGuessing:
        time.sleep(0.5)
        return NumberGuessing()

    with pytest.raises(EnvironmentFault, match="was not made"):
        async with EnvironmentPool(slow, size=1, deadline_s=0.05).lease():
            pass


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 1, "deadline_s": 0.0}])
def test_numbers_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(AgenticError, match="a pool needs"):
        EnvironmentPool(Counted, **options)  # type: ignore[arg-type]


async def test_an_inline_environment_answers_as_the_one_inside() -> None:
    plain, inline = NumberGuessing(), InlineEnvironment(NumberGuessing())
    assert await inline.reset(seed=5) == plain.reset(seed=5)
    assert await inline.step("3") == plain.step("3")
