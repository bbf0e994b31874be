import asyncio

import pytest
from roll_agentic import (
    AgenticError,
    EnvironmentFault,
    RandomPolicy,
    ScriptedPolicy,
    SoloGame,
    Turn,
    check_environment,
    run_episode,
    run_game,
)
from roll_agentic.environments import TicTacToe, solo_tic_tac_toe


def play(moves: str, seed: int = 0) -> tuple:
    """The last answer of a game in which the players make these moves in turn."""
    game = TicTacToe()
    observations, _ = game.reset(seed=seed)
    for move in moves:
        answer = game.step({next(iter(observations)): move})
        observations = answer[0]
        if answer[2]:
            break
    return answer


@pytest.mark.parametrize(("moves", "first_wins"), [("12345", None), ("14253", 1.0), ("152397", -1.0)])
def test_rules_of_tic_tac_toe(moves: str, first_wins: float | None) -> None:
    first = next(iter(TicTacToe().reset(seed=0)[0]))
    _, rewards, terminated, _, _ = play(moves)
    assert terminated is (first_wins is not None)
    if first_wins is not None:
        assert rewards[first] == first_wins
        assert sum(rewards.values()) == 0


def test_draw_and_illegal_move() -> None:
    _, rewards, terminated, _, _ = play("123546879")
    assert (terminated, set(rewards.values())) == (True, {0.0})
    first = next(iter(TicTacToe().reset(seed=0)[0]))
    for illegal in ("x", "0", "55", ""):
        game = TicTacToe()
        game.reset(seed=0)
        _, rewards, terminated, _, info = game.step({first: illegal})
        assert (rewards[first], terminated, info["action_is_valid"]) == (-1.0, True, False)


async def test_self_play_gives_each_player_an_episode() -> None:
    policy, outcomes = RandomPolicy(), set()
    for seed in range(20):
        episodes = await run_game(TicTacToe(), {"X": policy, "O": policy}, seed=seed, max_turns=9)
        rewards = {name: episode.total_reward for name, episode in episodes.items()}
        assert sum(rewards.values()) == 0
        assert all(episode.status == "done" for episode in episodes.values())
        assert sum(len(episode.turns) for episode in episodes.values()) <= 9
        outcomes.add(rewards["X"])
    assert outcomes >= {1.0, -1.0}
    again = await run_game(TicTacToe(), {"X": policy, "O": policy}, seed=3, max_turns=9)
    once = await run_game(TicTacToe(), {"X": policy, "O": policy}, seed=3, max_turns=9)
    assert [turn.response for turn in again["X"].turns] == [turn.response for turn in once["X"].turns]


async def test_policy_is_told_who_it_is() -> None:
    seen = set()

    class Looks(RandomPolicy):
        async def act(self, state) -> Turn:
            seen.add(state.info["player"])
            return await super().act(state)

    await run_game(TicTacToe(), {"X": Looks(), "O": Looks()}, seed=1, max_turns=9)
    assert seen == {"X", "O"}


async def test_player_who_breaks_leaves_the_other_without_a_verdict_at_once() -> None:
    class Breaks:
        async def act(self, state):
            raise RuntimeError("gone")

    async with asyncio.timeout(10):
        episodes = await run_game(TicTacToe(), {"X": Breaks(), "O": RandomPolicy()}, seed=0, max_turns=9)
    assert episodes["X"].status == "policy_error"
    assert episodes["O"].status == "env_error"
    assert episodes["O"].failure is not None
    assert "player 'X' left the game" in episodes["O"].failure.message


async def test_game_that_raises_or_answers_garbage_ends_both_episodes() -> None:
    class Raises(TicTacToe):
        def step(self, actions):
            raise OSError("lost")

    class Garbage(TicTacToe):
        def step(self, actions):
            return {"Z": ""}, {}, False, False, {}

    for game in (Raises(), Garbage()):
        async with asyncio.timeout(10):
            players = {"X": RandomPolicy(), "O": RandomPolicy()}
            episodes = await run_game(game, players, seed=0, max_turns=9)
        assert {episode.status for episode in episodes.values()} == {"env_error"}


async def test_players_who_act_at_the_same_time_wait_for_each_other() -> None:
    class Bid:
        players = ("a", "b", "c")

        def reset(self, *, seed: int):
            return dict.fromkeys(self.players, "bid"), {}

        async def step(self, actions):
            best = max(actions, key=lambda name: int(actions[name]))
            return {}, {best: 1.0}, True, False, {}

    policies = {name: ScriptedPolicy([str(bid)]) for name, bid in (("a", 3), ("b", 7), ("c", 5))}
    episodes = await run_game(Bid(), policies, seed=0, max_turns=1)
    assert {name: episode.total_reward for name, episode in episodes.items()} == {"a": 0, "b": 1, "c": 0}


async def test_solo_game_keeps_the_promises_of_an_environment() -> None:
    results = await check_environment(solo_tic_tac_toe, actions=list("123456789"))
    assert [result for result in results if not result.passed] == []
    wins = [
        (await run_episode(solo_tic_tac_toe(), RandomPolicy(), seed=seed, max_turns=9)).total_reward
        for seed in range(30)
    ]
    assert {1.0, -1.0} <= set(wins)


async def test_game_abandoned_in_the_middle_can_be_started_again() -> None:
    environment = solo_tic_tac_toe()
    await environment.reset(seed=0)
    await environment.reset(seed=1)
    await environment.step("x")
    with pytest.raises(AgenticError, match="call reset"):
        await environment.step("1")
    await environment.close()


def test_missing_policies_and_players_are_refused() -> None:
    with pytest.raises(AgenticError, match="opponents for the others"):
        SoloGame(TicTacToe(), player="X", opponents={})
    with pytest.raises(AgenticError, match=r"policies for \['O', 'X'\], got \['X'\]"):
        asyncio.run(run_game(TicTacToe(), {"X": RandomPolicy()}, seed=0, max_turns=9))


async def test_seat_refuses_a_move_out_of_turn() -> None:
    from roll_agentic import Table

    table = Table(TicTacToe())
    with pytest.raises(AgenticError, match="not the turn"):
        await table.act("X", "1")
    with pytest.raises(AgenticError, match="no player 'Y'"):
        table.seat("Y")
    table.abandon("closed")
    with pytest.raises(EnvironmentFault, match="closed"):
        await table.seat("X").reset(seed=0)


async def test_player_who_comes_late_finds_the_game_waiting() -> None:
    from roll_agentic import Table

    table = Table(TicTacToe())
    first = next(iter(TicTacToe().reset(seed=0)[0]))
    other = "O" if first == "X" else "X"
    waits = asyncio.ensure_future(table.seat(other).reset(seed=0))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        observation, info = await table.seat(first).reset(seed=0)
        assert (observation, info["player"]) == ("...\n...\n...", first)
        moves = asyncio.ensure_future(table.seat(first).step("5"))
        assert (await waits)[0] == "...\n." + first + ".\n..."
        table.abandon("enough")
        with pytest.raises(EnvironmentFault, match="enough"):
            await moves
