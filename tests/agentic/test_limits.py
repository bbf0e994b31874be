import asyncio

import numpy as np
import pytest
from roll_agentic import AgenticError, ScriptedPolicy, Segment, StopReason, Turn, run_episode


class Endless:
    async def reset(self, *, seed: int) -> tuple:
        return "go", {"tools": [], "state": "start"}

    async def step(self, action: str, /) -> tuple:
        if action == "sleep":
            await asyncio.sleep(60)
        return "on", 0.5, False, False, {"tool_calls": int(action == "call"), "state": action}


class Talker:
    """Each turn adds three tokens."""

    async def act(self, state) -> Turn:
        said = Segment(
            source="sampled",
            token_ids=np.array([1, 2]),
            logprobs=np.zeros(2),
            versions=((0, 2),),
            finish_reason="stop",
        )
        return Turn(response="a", segments=(Segment(source="environment", token_ids=np.array([0])), said))


async def test_no_turn_begins_beyond_the_tokens() -> None:
    episode = await run_episode(Endless(), Talker(), seed=0, max_turns=99, max_tokens=10)
    assert (episode.status, len(episode.turns)) == (StopReason.MAX_TOKENS, 4)
    assert (episode.truncated, episode.total_reward) == (True, 2.0)


async def test_time_limit_cuts_a_hanging_step_without_blaming_anyone() -> None:
    episode = await run_episode(Endless(), ScriptedPolicy(["a", "sleep"]), seed=0, max_turns=9, seconds=0.3)
    assert (episode.status, episode.failure, episode.truncated) == ("time_limit", None, True)
    assert episode.seconds < 5
    assert episode.rewards.tolist() == [0.5, 0.0]


async def test_step_that_misses_its_own_deadline_is_a_fault_even_with_a_time_limit() -> None:
    episode = await run_episode(
        Endless(), ScriptedPolicy(["sleep"]), seed=0, max_turns=9, seconds=30.0, step_deadline_s=0.05
    )
    assert episode.status == "env_error"


async def test_anchors_are_the_states_that_turns_were_taken_in() -> None:
    episode = await run_episode(Endless(), ScriptedPolicy(["x", "y", "z"]), seed=0, max_turns=3)
    assert episode.anchors == ("start", "x", "y")


async def test_calls_are_counted() -> None:
    policy = ScriptedPolicy(["call", "a", "call"])
    episode = await run_episode(Endless(), policy, seed=0, max_turns=9, max_tool_calls=2)
    assert (episode.status, episode.tool_calls, len(episode.turns)) == ("max_tool_calls", 2, 3)


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"max_tool_calls": 0}, {"seconds": 0}])
async def test_limits_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(AgenticError, match="run_episode needs"):
        await run_episode(Endless(), ScriptedPolicy(["a"]), seed=0, max_turns=1, **options)


def test_stop_reasons_are_equal_to_their_text() -> None:
    assert {reason.value for reason in StopReason} == {str(reason) for reason in StopReason}
    assert StopReason("done") == "done"
