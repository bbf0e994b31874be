"""Environment cases of seeds and episodes, bound to the public functions of roll_agentic."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from roll_agentic import (
    Episode,
    EpisodeState,
    NumberGuessing,
    Segment,
    Turn,
    episode_rows,
    episode_seed,
    fit_observation,
    run_episode,
    step_returns,
    summarise_episodes,
)
from roll_agentic.environments import Terminal

PATH = Path(__file__).parent.parent / "data" / "cases" / "environments.jsonl"
CASES = [json.loads(line) for line in PATH.read_text().splitlines()]


class Says:
    """A policy that says one thing after the other and samples one token for each character."""

    def __init__(self, texts: list[str], finish_reason: str = "stop") -> None:
        self.texts = texts
        self.finish_reason = finish_reason

    async def act(self, state: EpisodeState) -> Turn:
        text = self.texts[state.turn]
        said = Segment(
            source="sampled",
            token_ids=np.array([*map(ord, text)]),
            logprobs=np.full(len(text), -0.5),
            versions=((0, len(text)),),
            finish_reason=self.finish_reason,  # type: ignore[arg-type]
        )
        segments = (Segment(source="environment", token_ids=np.array([1])), said)
        return Turn(response=text, segments=segments, finish_reason=self.finish_reason)  # type: ignore[arg-type]


class World:
    """Ends with reward 1 at turn `done_on`; may raise at a step or at every reset."""

    def __init__(
        self,
        *,
        done_on: int | None = None,
        raises_on: int | None = None,
        reset_raises: bool = False,
        valid: list[str] | None = None,
    ) -> None:
        self.done_on = done_on
        self.raises_on = raises_on
        self.reset_raises = reset_raises
        self.valid = valid
        self.resets = 0
        self.actions: list[str] = []

    def reset(self, *, seed: int) -> tuple:
        self.resets += 1
        if self.reset_raises:
            raise ConnectionError("no world")
        return "start", {}

    def step(self, action: str, /) -> tuple:
        self.actions.append(action)
        turn = len(self.actions)
        if turn == self.raises_on:
            raise ConnectionError("world lost")
        done = turn == self.done_on
        is_valid = self.valid is None or action in self.valid
        return f"turn {turn}", float(done), done, False, {"action_is_valid": is_valid}


async def seeds(given: dict, expected: dict) -> None:
    def all_seeds() -> list[int]:
        return [
            episode_seed(given["base_seed"], step * given["groups"] + group)
            for step in range(given["steps"])
            for group in range(given["groups"])
        ]

    assert (expected["across_groups"], expected["across_steps"]) == ("distinct", "distinct")
    assert len(set(all_seeds())) == given["steps"] * given["groups"]
    assert (expected["within_group"], expected["same_base_seed_again"]) == ("equal", "equal")
    assert all_seeds() == all_seeds()
    members = [NumberGuessing(numbers=1000, turns=1000) for _ in range(given["members"])]
    answers = []
    for member in members:
        member.reset(seed=all_seeds()[0])
        answers.append([member.step(str(guess))[0] for guess in range(1000) if guess % 100 == 0])
    assert answers[0] == answers[1]


async def episodes(given: dict, expected: dict) -> None:
    fault = given["fault"]
    broken = {"raises_on": fault.get("step"), "reset_raises": fault.get("reset_raises", False)}
    worlds = [World(done_on=4, **broken if i == fault["env"] else {}) for i in range(given["envs"])]
    retries = given.get("reset_retries", 1)
    played = await asyncio.gather(
        *(run_episode(w, Says(["a"] * 9), seed=0, max_turns=9, reset_retries=retries) for w in worlds)
    )
    for name, wanted in expected.items():
        if name.startswith("env_"):
            one_episode(played[int(name[4:])], worlds[int(name[4:])], wanted)
    fine = [episode for episode in played if episode.failure is None]
    assert len(fine) == expected.get("finished", given["envs"] - 1)
    assert summarise_episodes(played)["env/reward/mean"] == 1.0


def one_episode(episode: Episode, world: World, wanted: dict) -> None:
    if wanted["status"] == "ok":
        assert episode.status == "done"
        return
    assert episode.status == wanted["status"]
    assert math.isnan(episode.total_reward)
    assert world.resets == wanted.get("reset_calls", 1)


async def episode(given: dict, expected: dict) -> None:
    if "context_limit" in given:
        room = given["context_limit"] - given["used"]
        assert room < given["max_new_tokens"]
        world, policy = World(), Says(["left"[:room]], finish_reason="length")
    elif "actions_valid" in given:
        world, policy = World(valid=given["actions_valid"]), Says(given["model_says"])
    else:
        done_on = {"never done": None, "done on turn 3 with reward 1": 3}[given["env"]]
        world, policy = World(done_on=done_on), Says(["a"] * 9)
    played = await run_episode(world, policy, seed=0, max_turns=given.get("max_turns", 9))
    seen = {
        "model_turns": len(played.turns),
        "status": played.status,
        "success": played.success,
        "truncated": played.truncated,
        "terminated": played.terminated,
        "invalid_actions": played.invalid_actions,
        "short_reply_parsed_as_action": bool(world.actions) and "context_limit" in given,
    }
    assert {name: seen[name] for name in expected} == expected


async def turn(given: dict, expected: dict) -> None:
    policy = Says([given["text"]], finish_reason=given["finish_reason"])
    world = World()
    played = await run_episode(world, policy, seed=0, max_turns=3)
    row = played.transcript.to_training_row()
    assert expected == {"marked": "truncated", "trained_as_normal_turn": False}
    assert row.truncated
    assert played.turns[-1].finish_reason == given["finish_reason"]
    assert world.actions == []


async def observation(given: dict, expected: dict) -> None:
    tokens, mark = list(range(given["observation_tokens"])), [-1, -2]
    cut = fit_observation(tokens, limit=given["limit"], mark=mark)
    assert len(cut) <= expected["tokens_at_most"]
    assert (all(token in cut for token in mark)) == expected["has_cut_marker"]
    said = Segment(
        source="sampled",
        token_ids=np.array([7] * given["limit"]),
        logprobs=np.zeros(given["limit"]),
        versions=((0, given["limit"]),),
        finish_reason="stop",
    )

    class Cuts:
        async def act(self, state: EpisodeState) -> Turn:
            seen = Segment(source="environment", token_ids=np.abs(cut))
            return Turn(response="a", segments=(seen, said))

    played = await run_episode(World(done_on=2), Cuts(), seed=0, max_turns=2)
    (row,) = episode_rows(played.history)
    changed = np.flatnonzero(row.token_ids[row.response_mask] != 7)
    assert len(changed) == expected["model_tokens_changed"]


async def isolation(given: dict, expected: dict) -> None:
    name, value = given["env_a_writes"].split("=")
    writer, reader = Terminal(), Terminal()
    for environment in (writer, reader):
        await environment.reset(seed=0)
    await writer.step(f"echo {value} > {name}")
    assert (await writer.step(f"cat {name}"))[0] == f"{value}\n"

    async def seen_by(environment: Terminal) -> str | None:
        shown = (await environment.step(f"cat {given['env_b_reads']}"))[0]
        return None if "no such file" in shown else shown

    assert await seen_by(reader) == expected["env_b_sees"]
    await writer.reset(seed=0)
    assert await seen_by(writer) == expected["next_episode_of_a_sees"]


async def returns(given: dict, expected: dict) -> None:
    computed = step_returns(given["rewards"], gamma=given["gamma"])
    assert computed == pytest.approx(expected["returns"], abs=expected["tol"])


OPERATIONS: dict[str, Callable[[dict, dict], Awaitable[None]]] = {
    "seeds": seeds,
    "episodes": episodes,
    "episode": episode,
    "turn": turn,
    "fit_observation": observation,
    "isolation": isolation,
    "returns": returns,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['why']}")
async def test_case(case: dict) -> None:
    await OPERATIONS[case["input"]["op"]](case["input"], case["expected"])


def test_every_operation_has_a_case() -> None:
    assert {case["input"]["op"] for case in CASES} == set(OPERATIONS)
