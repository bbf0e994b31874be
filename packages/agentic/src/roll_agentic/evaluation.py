"""A policy's episodes on an environment, and their records as JSON. Used by `roll-env run`."""

import asyncio
from collections.abc import Callable

from roll_agentic.boundary import close_environment, made
from roll_agentic.environment import Environment
from roll_agentic.episode import Episode
from roll_agentic.errors import AgenticError
from roll_agentic.policy import Policy
from roll_agentic.runner import run_episode
from roll_agentic.seeds import episode_seed


async def evaluate(
    make: Callable[[], Environment],
    policy: Policy,
    *,
    episodes: int,
    run_seed: int = 0,
    max_turns: int = 20,
    concurrency: int = 16,
) -> list[Episode]:
    """Episodes with validation seeds, each with an environment of its own, in the order of their seeds.

    Args:
        make: Makes an environment.
        policy: Who plays them all.
        episodes: How many, at least 1.
        run_seed: Seed of the evaluation.
        max_turns: Turns of an episode, at least 1.
        concurrency: Episodes at a time, at least 1.

    Raises:
        AgenticError: A number is out of its range, or the environment cannot be made.
    """
    if episodes < 1 or concurrency < 1:
        raise AgenticError(
            f"evaluate needs episodes and concurrency of at least 1, got {episodes}, {concurrency}"
        )
    gate = asyncio.Semaphore(concurrency)

    async def one(number: int) -> Episode:
        async with gate:
            environment = await made(make)
            try:
                seed = episode_seed(run_seed, number, split="validation")
                return await run_episode(environment, policy, seed=seed, max_turns=max_turns)
            finally:
                await close_environment(environment)

    return list(await asyncio.gather(*(one(number) for number in range(episodes))))


def episode_record(episode: Episode) -> dict[str, object]:
    """An episode as JSON, without its tokens: seed, status, rewards, messages, failure, seconds."""
    failure = episode.failure
    return {
        "seed": episode.seed,
        "status": str(episode.status),
        "total_reward": None if failure else episode.total_reward,
        "rewards": episode.rewards.tolist(),
        "messages": [{"role": message.role, "text": message.text} for message in episode.messages],
        "invalid_actions": episode.invalid_actions,
        "tool_calls": episode.tool_calls,
        "failure": {"kind": failure.kind, "message": failure.message} if failure else None,
        "seconds": round(episode.seconds, 6),
    }
