"""Demonstrations of number guessing: playable games, imperfect, in the tokens that episodes have."""

import json
from pathlib import Path

import pytest
from roll_agentic import NumberGuessing, PlainText, first_ids, following_ids
from roll_launch.data import PromptEncoder, Row
from roll_launch.models import load_tokenizer
from roll_launch.tasks.number_guessing import write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guesses")
    write_files(directory, seed=0, demonstrations=400)
    return directory


def games(files: Path) -> list[list[dict[str, str]]]:
    return [
        json.loads(line)["messages"] for line in (files / "demonstrations.jsonl").read_text().splitlines()
    ]


def answers_to(secret_seed: int, guesses: list[str]) -> list[str]:
    """What the environment answers, up to the end of the game."""
    game = NumberGuessing(numbers=16, turns=5)
    game.reset(seed=secret_seed)
    answers = []
    for guess in guesses:
        answer, _, over, _, _ = game.step(guess)
        answers.append(answer)
        if over:
            break
    return answers


def test_answers_are_those_of_the_environment(files: Path) -> None:
    for messages in games(files)[:40]:
        guesses = [message["content"] for message in messages[1::2]]
        answers = [message["content"] for message in messages[2::2]]
        assert any(answers_to(seed, guesses)[: len(answers)] == answers for seed in range(200))


def test_demonstrations_find_the_number_in_some_games_only(files: Path) -> None:
    lengths = [len(messages) // 2 for messages in games(files)]
    assert max(lengths) == 5 and 0.3 < sum(length < 5 for length in lengths) / len(lengths) < 0.7


def test_a_demonstration_has_the_tokens_of_an_episode(files: Path) -> None:
    messages = next(each for each in games(files) if len(each) == 6)
    row = Row(prompt=None, messages=tuple(messages), response=None, reference=None, columns={}, origin="")
    ids, mask = PromptEncoder(files / "tokenizer").supervised_tokens(row)
    plain = PlainText(load_tokenizer(files / "tokenizer"))
    expected = first_ids(plain, messages[:1])
    for guess, answer in zip(messages[1::2], [*messages[2::2], None], strict=True):
        expected += [*plain.encode(guess["content"]), plain.end_token_id]
        expected += following_ids(plain, [answer], ended=True) if answer else []
    assert ids.tolist() == expected
    assert mask.sum() == 6


def test_each_number_is_one_token_and_comes_back_as_text(files: Path) -> None:
    plain = PlainText(load_tokenizer(files / "tokenizer"))
    assert [len(plain.encode(str(number))) for number in range(16)] == [1] * 16
    assert plain.decode(plain.encode("15")) == "15"


def test_the_same_arguments_write_the_same_bytes(files: Path, tmp_path: Path) -> None:
    write_files(tmp_path, seed=0, demonstrations=400)
    name = "demonstrations.jsonl"
    assert (tmp_path / name).read_bytes() == (files / name).read_bytes()


@pytest.mark.parametrize("wrong", [{"demonstrations": -1}, {"numbers": 0}, {"turns": 0}])
def test_numbers_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        write_files(tmp_path, seed=0, **wrong)  # type: ignore[arg-type]
