"""Groups of episodes with one seed, without a barrier between environments. Called by rollout loops.

A member that breaks is played again with a fresh environment; a group is handed over at its
`size`-th episode with a verdict. More members and groups than needed may be started, the first ones
to finish are kept and the rest is stopped (redundant environments).

Source: ROLL Flash, arXiv 2510.11345, and RollArt, arXiv 2512.22560, section 6.3.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roll_agentic.boundary import close_environment, made
from roll_agentic.environment import Environment
from roll_agentic.episode import Episode, Failure
from roll_agentic.errors import AgenticError

_log = logging.getLogger(__name__)

PlayMember = Callable[[Environment, int, int, int], Awaitable[Episode]]
"""`play(environment, seed, group, member)`: one episode, say by `run_episode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """How many episodes are wanted, and how many are started for them.

    Example: `GroupPlan(groups=3, size=2, extra_groups=1, extra_members=1)` starts 12 episodes for 6.

    Attributes:
        groups: Groups wanted, at least 1.
        size: Episodes of a group, at least 1.
        extra_groups: Groups started beyond that, at least 0.
        extra_members: Members of each started beyond its size, at least 0.
        replacements: How often a member that broke is played again, at least 0.
        incomplete: What becomes of a group too many of whose members broke: `drop` it, or `keep` the
            rest if at least 2 (of a group of 1, none) are left.
        concurrency: Episodes at a time, at least 1.
        make_s: Seconds for making an environment, above 0.

    Raises:
        AgenticError: A number is out of its range.
    """

    groups: int
    size: int
    extra_groups: int = 0
    extra_members: int = 0
    replacements: int = 1
    incomplete: Literal["drop", "keep"] = "drop"
    concurrency: int = 1000
    make_s: float = 60.0

    def __post_init__(self) -> None:
        wanted = (("groups", 1), ("size", 1), ("extra_groups", 0), ("extra_members", 0))
        for name, least in (*wanted, ("replacements", 0), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise AgenticError(f"GroupPlan needs {name} of at least {least}, got {getattr(self, name)}")
        if not self.make_s > 0:
            raise AgenticError(f"GroupPlan needs make_s above 0, got {self.make_s}")
        if self.incomplete not in ("drop", "keep"):
            raise AgenticError(f"incomplete is drop or keep; got {self.incomplete!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeGroup:
    """Episodes of one seed.

    Example: `EpisodeGroup(group=2, seed=77, members=(0, 1), episodes=(...), failures=())`.

    Attributes:
        group: Number of the group: 0, 1, ...
        seed: Of all its episodes.
        members: Numbers of the members kept, rising.
        episodes: Their episodes, in that order; all have a verdict.
        failures: Why other attempts have none.
    """

    group: int
    seed: int
    members: tuple[int, ...]
    episodes: tuple[Episode, ...]
    failures: tuple[Failure, ...]


async def run_groups(
    plan: GroupPlan, *, make: Callable[[], Environment], play: PlayMember, seeds: Sequence[int]
) -> list[EpisodeGroup]:
    """The first groups to be complete, in the order in which they were.

    Args:
        plan: How many.
        make: Makes a fresh environment; called in a thread for each member and each replacement. An
            environment with a method `close` (plain or `async`) is closed after its episode.
        play: Plays one episode; see `PlayMember`.
        seeds: One for each group, the extra ones too.

    Returns:
        `plan.groups` groups, or fewer if too many broke.

    Raises:
        AgenticError: There is another number of seeds.
        asyncio.CancelledError: The caller was cancelled; all episodes are stopped.
    """
    started = plan.groups + plan.extra_groups
    if len(seeds) != started:
        raise AgenticError(f"run_groups needs a seed for each of {started} groups, got {len(seeds)}")
    gate = asyncio.Semaphore(plan.concurrency)
    groups = [
        asyncio.ensure_future(_group(plan, number, seed, make, play, gate))
        for number, seed in enumerate(seeds)
    ]
    done: list[EpisodeGroup] = []
    try:
        for finished in asyncio.as_completed(groups):
            group = await finished
            if group is not None:
                done.append(group)
            if len(done) == plan.groups:
                break
    finally:
        await _stop(groups)
    return done


async def _group(
    plan: GroupPlan,
    number: int,
    seed: int,
    make: Callable[[], Environment],
    play: PlayMember,
    gate: asyncio.Semaphore,
) -> EpisodeGroup | None:
    """The first `size` members to end with a verdict; None when the group is dropped."""
    failures: list[Failure] = []
    members = [
        asyncio.ensure_future(_member(plan, number, member, seed, make, play, gate, failures))
        for member in range(plan.size + plan.extra_members)
    ]
    kept: dict[int, Episode] = {}
    try:
        for finished in asyncio.as_completed(members):
            member, episode = await finished
            if episode is not None:
                kept[member] = episode
            if len(kept) == plan.size:
                break
    finally:
        await _stop(members)
    least = plan.size if plan.incomplete == "drop" else min(2, plan.size)
    if len(kept) < least:
        _log.warning("group %d is dropped: %d of %d members broke", number, len(failures), len(members))
        return None
    order = tuple(sorted(kept))
    return EpisodeGroup(
        group=number,
        seed=seed,
        members=order,
        episodes=tuple(kept[member] for member in order),
        failures=tuple(failures),
    )


async def _member(
    plan: GroupPlan,
    group: int,
    member: int,
    seed: int,
    make: Callable[[], Environment],
    play: PlayMember,
    gate: asyncio.Semaphore,
    failures: list[Failure],
) -> tuple[int, Episode | None]:
    """A member's episode, with a fresh environment for every attempt."""
    for _ in range(plan.replacements + 1):
        async with gate:
            try:
                environment = await made(make, deadline_s=plan.make_s)
            except Exception as error:
                # Boundary to foreign code: making an environment may raise anything.
                failures.append(Failure(kind="error", message=f"make: {type(error).__name__}: {error}"))
                continue
            try:
                episode = await play(environment, seed, group, member)
            finally:
                await close_environment(environment)
        if episode.failure is None:
            return member, episode
        failures.append(episode.failure)
    return member, None


async def _stop(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
