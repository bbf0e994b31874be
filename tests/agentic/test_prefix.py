import copy

import numpy as np
import pytest
from roll_agentic import (
    AgenticError,
    Episode,
    NumberGuessing,
    Prefix,
    ScriptedPolicy,
    Segment,
    SequentialRollback,
    Turn,
    episode_rows,
    parallel_forks,
    run_episode,
)


class Guesses:
    """Says numbers and samples a token for each digit."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    async def act(self, state) -> Turn:
        text = str(self.numbers[state.turn])
        said = Segment(
            source="sampled",
            token_ids=np.array([*map(int, text)]),
            logprobs=np.full(len(text), -1.0),
            versions=((0, len(text)),),
            finish_reason="stop",
        )
        return Turn(response=text, segments=(Segment(source="environment", token_ids=np.array([99])), said))


async def played(numbers: list[int], **options) -> Episode:
    game = NumberGuessing(numbers=100, turns=9)
    return await run_episode(game, Guesses(numbers), seed=5, max_turns=len(numbers), **options)


async def test_fork_continues_after_the_replayed_turns_and_trains_only_what_is_new() -> None:
    episode = await played([50, 60, 70])
    fork = await played([0, 0, 11, 12], prefix=Prefix.of(episode, turns=2))
    assert [turn.response for turn in fork.turns] == ["50", "60", "11", "12"]
    assert fork.messages[:5] == episode.messages[:5]
    assert fork.anchors[:2] == episode.anchors[:2]
    branch = fork.history.branches[-1]
    assert (branch.reason, branch.first_turn, branch.inherited) == ("fork: turn 2", 2, 6)
    (row,) = episode_rows(fork.history)
    assert row.turns.tolist() == [2, 3]
    assert row.token_ids[row.response_mask].tolist() == [1, 1, 1, 2]
    (whole,) = episode_rows(fork.history, train_inherited=True)
    assert whole.token_ids[whole.response_mask].tolist() == [5, 0, 6, 0, 1, 1, 1, 2]


async def test_fork_from_a_snapshot_does_not_play_again() -> None:
    game = NumberGuessing(numbers=100, turns=9)
    game.reset(seed=5)
    _, _, _, _, info = game.step("50")
    snapshot = copy.deepcopy(game)
    episode = await played([50, 60])
    prefix = Prefix.of(episode, turns=1, snapshot_info=info)
    fork = await run_episode(snapshot, Guesses([0, 61]), seed=5, max_turns=2, prefix=prefix)
    assert [turn.response for turn in fork.turns] == ["50", "61"]
    assert fork.failure is None


async def test_environment_that_answers_otherwise_is_found() -> None:
    class Forgetful(NumberGuessing):
        def step(self, action: str, /):
            observation, *rest = super().step(action)
            return (observation + "?", *rest)

    episode = await played([50, 60])
    fork = await run_episode(
        Forgetful(numbers=100, turns=9),
        Guesses([0, 1]),
        seed=5,
        max_turns=2,
        prefix=Prefix.of(episode, turns=1),
        reset_retries=0,
    )
    assert fork.failure is not None
    assert fork.failure.kind == "diverged"


async def test_impossible_forks_are_refused() -> None:
    episode = await played([50, 60])
    for turns in (-1, 2):
        with pytest.raises(AgenticError, match="a fork keeps 0 to 1 turns"):
            Prefix.of(episode, turns=turns)
    with pytest.raises(AgenticError, match="must be equal"):
        await run_episode(
            NumberGuessing(), ScriptedPolicy(["1"]), seed=6, max_turns=2, prefix=Prefix.of(episode, turns=1)
        )


def test_parallel_forks_are_spread_and_distinct() -> None:
    assert parallel_forks(10, count=5) == [0, 2, 4, 6, 8]
    assert parallel_forks(3, count=8) == [0, 1, 2]
    assert parallel_forks(4, count=3, at=[0.9, 1.0, 0.3]) == [1, 3]
    with pytest.raises(AgenticError):
        parallel_forks(0, count=1)


def test_rollback_moves_back_only_when_the_fork_is_learned() -> None:
    rollback = SequentialRollback(3, success=0.5)
    assert [rollback.fork, *(rollback.report(rate) for rate in (0.2, 0.6, 0.5, 1.0))] == [2, 2, 1, 0, 0]
    with pytest.raises(AgenticError):
        SequentialRollback(0)
