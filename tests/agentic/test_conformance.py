import itertools
import random
import threading

import pytest
from roll_agentic import AgenticError, CheckResult, check_environment, make

NUMBERS = [str(number) for number in range(16)]


class Walk:
    """Steps along a line to its end; the base of environments that break one promise each."""

    def __init__(self) -> None:
        self.position = 0

    def reset(self, *, seed: int) -> tuple:
        self.position = seed % 3
        return str(self.position), {}

    def step(self, action: str, /) -> tuple:
        if self.position >= 5:
            raise RuntimeError("over")
        self.position += 1
        return str(self.position), float(self.position == 5), self.position == 5, False, {}


class AsyncWalk(Walk):
    async def reset(self, *, seed: int) -> tuple:  # type: ignore[override]
        return super().reset(seed=seed)

    async def step(self, action: str, /) -> tuple:  # type: ignore[override]
        return super().step(action)


class Unseeded(Walk):
    def reset(self, *, seed: int) -> tuple:
        return super().reset(seed=0)


class Random(Walk):
    def step(self, action: str, /) -> tuple:
        return (f"{random.random()}", *super().step(action)[1:])


class Endless(Walk):
    def step(self, action: str, /) -> tuple:
        return "on", 0.0, False, False, {}


class Undead(Walk):
    def step(self, action: str, /) -> tuple:
        if self.position >= 5:
            return "again", 1.0, False, False, {}
        return super().step(action)


class Resting(Walk):
    def step(self, action: str, /) -> tuple:
        if self.position >= 5:
            return "over", 0.0, True, False, {}
        return super().step(action)


class Strict(Walk):
    def step(self, action: str, /) -> tuple:
        if action not in NUMBERS:
            raise ValueError(f"no action {action!r}")
        return super().step(action)


class Integer(Walk):
    def reset(self, *, seed: int) -> tuple:
        return 5, {}


class Remembering(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.episodes = itertools.count()

    def reset(self, *, seed: int) -> tuple:
        observation, info = super().reset(seed=seed)
        return f"{observation} of episode {next(self.episodes)}", info


class Shared(Walk):
    position = 0

    def __init__(self) -> None:
        pass

    def reset(self, *, seed: int) -> tuple:
        Shared.position = seed % 3
        return str(Shared.position), {}

    def step(self, action: str, /) -> tuple:
        if Shared.position >= 5:
            raise RuntimeError("over")
        Shared.position += 1
        return str(Shared.position), float(Shared.position == 5), Shared.position == 5, False, {}


class Hanging(Walk):
    def step(self, action: str, /) -> tuple:
        threading.Event().wait()
        return ()


def failed(results: list[CheckResult]) -> set[str]:
    return {result.name for result in results if not result.passed}


@pytest.mark.parametrize(
    "name", ["number_guessing", f"{__name__}:Walk", f"{__name__}:AsyncWalk", f"{__name__}:Resting"]
)
async def test_sound_environments_pass_every_check(name: str) -> None:
    results = await check_environment(lambda: make(name), actions=NUMBERS)
    assert failed(results) == set()
    assert [result.name for result in results] == [
        "answers",
        "ends",
        "same_seed",
        "reset_forgets",
        "seeds_differ",
        "instances_apart",
        "invalid_actions",
        "step_after_done",
    ]


@pytest.mark.parametrize(
    ("kind", "checks", "detail"),
    [
        (Unseeded, {"seeds_differ"}, "8 seeds make the same episode"),
        (Random, {"same_seed", "reset_forgets", "instances_apart"}, "seed 0 differs in step 0"),
        (Endless, {"ends"}, "none of 8 episodes ended within 20 steps"),
        (Undead, {"step_after_done"}, "the episode was over, but step answered ('again', 1.0, False, False)"),
        (Strict, {"invalid_actions"}, "Strict.step raised ValueError: no action ''"),
        (Integer, {"answers"}, "Integer.reset must return a str as observation, got int 5"),
        (Remembering, {"reset_forgets"}, "played after other episodes, seed 1 starts with '1 of episode 1'"),
        (Hanging, {"answers"}, "Hanging.step: no answer within"),
    ],
)
async def test_broken_promise_is_found_and_named(kind: type[Walk], checks: set[str], detail: str) -> None:
    deadline_s = 0.05 if kind is Hanging else 10.0
    results = await check_environment(kind, actions=NUMBERS, max_steps=20, deadline_s=deadline_s)
    assert failed(results) == checks
    assert any(detail in result.detail for result in results)


async def test_state_shared_between_instances_is_found() -> None:
    results = await check_environment(Shared, actions=NUMBERS)
    assert failed(results) == {"instances_apart"}


async def test_environment_without_chance_may_say_so() -> None:
    results = await check_environment(Unseeded, seeded=False)
    assert failed(results) == set()
    assert "seeds_differ" not in {result.name for result in results}


async def test_factory_that_raises_is_reported() -> None:
    def broken() -> Walk:
        raise OSError("no display")

    results = await check_environment(broken)
    assert results == [CheckResult(name="answers", passed=False, detail="make raised OSError: no display")]


@pytest.mark.parametrize("options", [{"actions": []}, {"seeds": [1]}, {"max_steps": 0}, {"deadline_s": 0}])
async def test_arguments_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(AgenticError, match="check_environment needs"):
        await check_environment(Walk, **options)
