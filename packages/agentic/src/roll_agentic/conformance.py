"""The suite that any `Environment` can be run through, ours and third parties'."""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from roll_agentic.boundary import close_environment, made
from roll_agentic.environment import Environment
from roll_agentic.errors import AgenticError, EnvironmentFault
from roll_agentic.session import EnvironmentSession

DEFAULT_ACTIONS = ("0", "1", "2", "3", "5", "8", "left", "right", "up", "down", "yes", "no")
INVALID_ACTIONS = ("", " ", "no such action", "\x00", "-1", "9" * 500, "{}", "<tool_call>", "é\ud800")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check of the suite.

    Example: `CheckResult(name="same_seed", passed=False, detail="seed 0: step 1 differs")`.

    Attributes:
        name: What was checked.
        passed: Whether the environment does it.
        detail: What was seen; empty when there is nothing to say.
    """

    name: str
    passed: bool
    detail: str = ""


async def check_environment(
    make: Callable[[], Environment],
    *,
    actions: Sequence[str] = DEFAULT_ACTIONS,
    seeds: Sequence[int] = range(8),
    max_steps: int = 100,
    seeded: bool = True,
    deadline_s: float = 10.0,
) -> list[CheckResult]:
    """Whether an environment keeps the promises of its seam.

    Args:
        make: Makes a new environment, the same each time.
        actions: Actions to play with, at least 1; those of the environment's own tell more.
        seeds: Seeds to play, at least 2.
        max_steps: Longest episode to play, at least 1.
        seeded: Whether the seed makes a difference; with False the check `seeds_differ` is left out.
        deadline_s: Seconds for each call, above 0.

    Returns:
        The checks, in this order: `answers` (every call answers in time and in the right form, rewards
        are finite), `ends` (an episode ended by itself), `same_seed` (a new instance plays the same
        episode again), `reset_forgets` (so does one that has played others before), `seeds_differ`
        (another seed makes another episode), `instances_apart` (two that are played in turns do not
        disturb each other), `invalid_actions` (nonsense is answered), and `step_after_done` (it
        raises, or stays over without a reward; left out when no episode ended).

    Raises:
        AgenticError: An argument is out of its range.
    """
    if len(actions) < 1 or len(seeds) < 2 or max_steps < 1 or not deadline_s > 0:
        raise AgenticError(
            "check_environment needs an action, two seeds, max_steps of at least 1 and deadline_s above 0, "
            f"got {len(actions)} actions, {len(seeds)} seeds, max_steps={max_steps}, deadline_s={deadline_s}"
        )
    suite = _Suite(make, actions, seeds, max_steps, deadline_s)
    results = [await _checked("answers", suite.answers)]
    if not results[0].passed:
        return results
    results.append(await _checked("ends", suite.ends))
    results.append(await _checked("same_seed", suite.same_seed))
    results.append(await _checked("reset_forgets", suite.reset_forgets))
    if seeded:
        results.append(await _checked("seeds_differ", suite.seeds_differ))
    results.append(await _checked("instances_apart", suite.instances_apart))
    results.append(await _checked("invalid_actions", suite.invalid_actions))
    if results[1].passed:
        results.append(await _checked("step_after_done", suite.step_after_done))
    return results


async def _checked(name: str, check: Callable[[], Awaitable[str]]) -> CheckResult:
    """The result of a check, which returns what is wrong or an empty text."""
    try:
        wrong = await check()
    except EnvironmentFault as fault:
        wrong = fault.message
    return CheckResult(name=name, passed=not wrong, detail=wrong)


class _Suite:
    """The checks; `answers` runs first and leaves the episodes that the others compare with."""

    def __init__(
        self,
        make: Callable[[], Environment],
        actions: Sequence[str],
        seeds: Sequence[int],
        max_steps: int,
        deadline_s: float,
    ) -> None:
        self._make = make
        self._seeds = seeds
        self._deadline_s = deadline_s
        self._actions = {seed: random.Random(seed).choices(actions, k=max_steps) for seed in seeds}
        self._plays: dict[int, _Play] = {}

    async def answers(self) -> str:
        for seed in self._seeds:
            async with self._session() as session:
                self._plays[seed] = await self._play(session, seed)
        return ""

    async def ends(self) -> str:
        if any(play.is_over for play in self._plays.values()):
            return ""
        steps = len(self._plays[self._seeds[0]].steps)
        return f"none of {len(self._plays)} episodes ended within {steps} steps of these actions"

    async def same_seed(self) -> str:
        for seed in self._seeds:
            async with self._session() as session:
                if wrong := self._difference(seed, await self._play(session, seed)):
                    return wrong
        return ""

    async def reset_forgets(self) -> str:
        async with self._session() as session:
            for seed in [*self._seeds, *self._seeds]:
                if wrong := self._difference(seed, await self._play(session, seed)):
                    return f"played after other episodes, {wrong}"
        return ""

    async def seeds_differ(self) -> str:
        first = self._seeds[0]
        for seed in self._seeds[1:]:
            async with self._session() as session:
                # The first seed's actions, so that only the seed can make the difference.
                if await self._play(session, seed, actions_of=first) != self._plays[first]:
                    return ""
        return f"{len(self._seeds)} seeds make the same episode; pass seeded=False if that is meant"

    async def instances_apart(self) -> str:
        one, other = self._seeds[0], self._seeds[1]
        async with self._session() as first, self._session() as second:
            plays = {one: await _started(first, one), other: await _started(second, other)}
            for index in range(len(self._actions[one])):
                for seed, session in ((one, first), (other, second)):
                    if not plays[seed].is_over:
                        await plays[seed].go_on(session, self._actions[seed][index])
        for seed, play in plays.items():
            if wrong := self._difference(seed, play):
                return f"played in turns with another instance, {wrong}"
        return ""

    async def invalid_actions(self) -> str:
        async with self._session() as session:
            for action in INVALID_ACTIONS:
                await session.reset(seed=self._seeds[0])
                await session.step(action)
        return ""

    async def step_after_done(self) -> str:
        seed = next(seed for seed, play in self._plays.items() if play.is_over)
        async with self._session() as session:
            play = await self._play(session, seed)
            try:
                await play.go_on(session, self._actions[seed][0])
            except EnvironmentFault as fault:
                return "" if fault.kind == "error" else fault.message
        _, reward, terminated, truncated = play.steps[-1]
        if reward == 0 and (terminated or truncated):
            return ""
        return f"the episode was over, but step answered {play.steps[-1]}"

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[EnvironmentSession]:
        try:
            environment = await made(self._make, deadline_s=self._deadline_s)
        except Exception as error:
            # Boundary to foreign code: making an environment may raise anything.
            raise EnvironmentFault("error", f"make raised {type(error).__name__}: {error}") from error
        session = EnvironmentSession(environment, deadline_s=self._deadline_s)
        try:
            yield session
        finally:
            session.close()
            await close_environment(environment)

    async def _play(
        self, session: EnvironmentSession, seed: int, *, actions_of: int | None = None
    ) -> "_Play":
        play = await _started(session, seed)
        for action in self._actions[seed if actions_of is None else actions_of]:
            await play.go_on(session, action)
            if play.is_over:
                break
        return play

    def _difference(self, seed: int, again: "_Play") -> str:
        """Where an episode differs from the first one with its seed, in words; empty when nowhere."""
        before = self._plays[seed]
        if again.observation != before.observation:
            return f"seed {seed} starts with {again.observation!r:.80}, before {before.observation!r:.80}"
        for index, (now, then) in enumerate(itertools.zip_longest(again.steps, before.steps)):
            if now != then:
                return f"seed {seed} differs in step {index}: {now!r:.120}, before {then!r:.120}"
        return ""


@dataclass(slots=True)
class _Play:
    """An episode: its first observation, then (observation, reward, terminated, truncated) for each step."""

    observation: str
    steps: list[tuple[str, float, bool, bool]]

    @property
    def is_over(self) -> bool:
        return bool(self.steps) and (self.steps[-1][2] or self.steps[-1][3])

    async def go_on(self, session: EnvironmentSession, action: str) -> None:
        answer = await session.step(action)
        self.steps.append((answer.observation, answer.reward, answer.terminated, answer.truncated))


async def _started(session: EnvironmentSession, seed: int) -> _Play:
    observation, _ = await session.reset(seed=seed)
    return _Play(observation=observation, steps=[])
