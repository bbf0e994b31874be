from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import AgenticError, NumberGuessing


def bisect(game: NumberGuessing, seed: int, numbers: int) -> tuple[list[str], float, bool]:
    """Play well; the answers, the last reward and whether the episode ended."""
    game.reset(seed=seed)
    low, high, answers = 0, numbers - 1, []
    while True:
        guess = (low + high) // 2
        answer, reward, terminated, truncated, info = game.step(str(guess))
        assert info["action_is_valid"] is True
        assert not truncated
        answers.append(answer)
        if terminated:
            return answers, reward, True
        low, high = (guess + 1, high) if answer == ">" else (low, guess - 1)


@given(st.integers(0, 2**63 - 1))
def test_bisection_always_finds_one_of_sixteen_numbers_in_five_turns(seed: int) -> None:
    answers, reward, over = bisect(NumberGuessing(numbers=16, turns=5), seed, 16)
    assert answers[-1] == "!"
    assert set(answers[:-1]) <= {"<", ">"}
    assert reward == 1.0
    assert over


def test_answers_tell_on_which_side_the_secret_lies() -> None:
    game = NumberGuessing(numbers=3, turns=3)
    secrets = set()
    for seed in range(30):
        game.reset(seed=seed)
        answer = game.step("1")[0]
        secret = {"<": "0", "!": "1", ">": "2"}[answer]
        secrets.add(secret)
        if answer != "!":
            assert game.step(secret)[:4] == ("!", 1.0, True, False)
    assert secrets == {"0", "1", "2"}


def test_secret_belongs_to_the_seed_and_all_numbers_occur() -> None:
    def secret(seed: int) -> int:
        game = NumberGuessing(numbers=16, turns=16)
        game.reset(seed=seed)
        return next(guess for guess in range(16) if game.step(str(guess))[0] == "!")

    secrets = [secret(seed) for seed in range(400)]
    assert secrets[:20] == [secret(seed) for seed in range(20)]
    counts = Counter(secrets)
    assert set(counts) == set(range(16))
    assert max(counts.values()) < 60


def test_last_guess_ends_the_episode_as_a_loss() -> None:
    game = NumberGuessing(numbers=1000, turns=2)
    game.reset(seed=0)
    assert game.step("x")[2] is False
    answer, reward, terminated, truncated, _ = game.step("y")
    assert (answer, reward, terminated, truncated) == ("?", 0.0, True, False)


@pytest.mark.parametrize("action", ["", "sixteen", "16", "-1", "1.0", "1 2", "9" * 1000, "\u0663", "\x00"])
def test_anything_but_a_number_in_range_uses_up_a_turn(action: str) -> None:
    game = NumberGuessing(numbers=16, turns=2)
    game.reset(seed=3)
    *answer, info = game.step(action)
    assert answer == ["?", 0.0, False, False] and info["action_is_valid"] is False
    assert game.step(action)[2] is True


def test_white_space_around_the_number_is_ignored() -> None:
    game = NumberGuessing(numbers=1, turns=1)
    game.reset(seed=0)
    assert game.step(" 0\n")[0] == "!"


def test_reset_asks_for_a_number_and_states_the_rules() -> None:
    observation, info = NumberGuessing(numbers=16, turns=5).reset(seed=0)
    assert observation == "?"
    assert "from 0 to 15 with at most 5 guesses" in str(info["instructions"])


def test_step_is_refused_before_reset_and_after_the_end() -> None:
    game = NumberGuessing(numbers=1, turns=3)
    with pytest.raises(AgenticError, match="call reset before step"):
        game.step("0")
    game.reset(seed=0)
    assert game.step("0")[2] is True
    with pytest.raises(AgenticError, match="call reset before step"):
        game.step("0")


@pytest.mark.parametrize(
    "options", [{"numbers": 0}, {"turns": 0}, {"turns": 2.5}, {"numbers": "16"}, {"turns": True}]
)
def test_impossible_games_are_refused(options: dict) -> None:
    with pytest.raises(AgenticError, match=f"NumberGuessing needs {next(iter(options))} of at least 1, got"):
        NumberGuessing(**options)


def test_the_state_is_what_the_answers_leave_possible_however_one_got_there() -> None:
    def states(*guesses: str) -> list[object]:
        game = NumberGuessing(numbers=16, turns=5)
        _, info = game.reset(seed=5)
        return [info["state"], *(game.step(guess)[4]["state"] for guess in guesses)]

    assert states("8", "x", "2", "15") == [
        "0..15, 5 left",
        "9..15, 4 left",
        "9..15, 3 left",
        "9..15, 2 left",
        "9..14, 1 left",
    ]
    assert states("8", "15")[-1] == states("15", "8")[-1]
