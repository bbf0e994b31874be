from pathlib import Path

import pytest
from roll_launch.config import RlvrStage, SftStage, load_config
from roll_launch.data import DataError, Row, open_rows
from roll_launch.tasks import puzzles
from roll_rewards import make_grader

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "rlvr_smollm2.yaml"
WORDS = ("son", "daughter", "father", "mother", "husband", "wife", "brother", "sister", "grandfather")
JUNK = ("", "no idea", "in-law", "s", "son daughter father mother", "The answer is son.", "<|im_end|>", "1")
ARITHMETIC = {"task": "basic_arithmetic", "split": "train", "size": 60, "seed": 0}


def drawn(**changes: object) -> list[dict[str, object]]:
    return list(puzzles.rows(**(ARITHMETIC | changes)))


def questions(rows: list[dict[str, object]]) -> list[str]:
    return [row["messages"][1]["content"] for row in rows]


@pytest.fixture(scope="module")
def stages() -> tuple[SftStage, RlvrStage]:
    """The stages of the example that these puzzles are for."""
    sft, rlvr = load_config(EXAMPLE).config.stages
    assert isinstance(sft, SftStage)
    assert isinstance(rlvr, RlvrStage)
    return sft, rlvr


@pytest.fixture(scope="module")
def sets(stages: tuple[SftStage, RlvrStage]) -> dict[str, list[Row]]:
    """The rows of its three data sets."""
    sft, rlvr = stages
    assert rlvr.evaluation is not None
    return {
        "demonstrations": open_rows(sft.data),
        "train": open_rows(rlvr.data),
        "heldout": open_rows(rlvr.evaluation.data),
    }


@pytest.mark.parametrize("own", [False, True], ids=["the example's grader", "reasoning-gym's grader"])
async def test_the_right_answer_scores_1_and_another_word_or_junk_0(
    stages: tuple[SftStage, RlvrStage], sets: dict[str, list[Row]], own: bool
) -> None:
    chosen = stages[1].rewards.grader
    task = sets["heldout"][0].columns["entry"]["metadata"]["source_dataset"]
    grader = make_grader("reasoning_gym", task=task) if own else make_grader(chosen.name, **chosen.options)
    for row in sets["heldout"][:40]:
        assert (await grader.grade(row.response, row.reference, **row.columns)).value == 1.0
        for junk in (*JUNK, *WORDS):
            if junk != row.reference:
                assert (await grader.grade(junk, row.reference, **row.columns)).value == 0.0, (row, junk)


def test_held_out_puzzles_are_in_no_other_set(sets: dict[str, list[Row]]) -> None:
    asked = {name: {row.messages[-1]["content"] for row in rows} for name, rows in sets.items()}
    assert not asked["heldout"] & asked["train"]
    assert not asked["heldout"] & asked["demonstrations"]


def test_no_set_has_a_puzzle_twice(sets: dict[str, list[Row]]) -> None:
    for rows in sets.values():
        assert len({row.messages[-1]["content"] for row in rows}) == len(rows)


def test_a_conversation_begins_with_a_system_message_so_that_a_template_adds_none() -> None:
    for system in ("", "Be brief."):
        row = drawn(size=1, system=system)[0]
        assert [message["role"] for message in row["messages"]] == ["system", "user"]
        assert row["messages"][0]["content"] == system


def test_the_split_depends_on_the_question_alone() -> None:
    assert not any(map(puzzles.is_heldout, questions(drawn())))
    assert all(map(puzzles.is_heldout, questions(drawn(split="heldout", seed=7))))


def test_about_one_puzzle_in_eight_is_held_out() -> None:
    heldout = sum(puzzles.is_heldout(f"Calculate {number} - 1.") for number in range(8000))
    assert heldout / 8000 == pytest.approx(1 / puzzles.HELDOUT_SHARE, abs=0.02)


def test_the_same_arguments_give_the_same_puzzles_and_a_larger_set_begins_with_them() -> None:
    assert drawn() == drawn()
    assert drawn(size=80)[:60] == drawn()
    assert drawn(seed=1_000_000) != drawn()


def test_the_entry_of_reasoning_gym_comes_along_for_its_own_grader() -> None:
    row = drawn(size=1)[0]
    assert row["entry"]["question"] == questions([row])[0]
    assert row["entry"]["answer"] == row["response"] == row["reference"]


def test_too_few_different_puzzles_are_an_error_that_counts_them() -> None:
    options = {"min_terms": 1, "max_terms": 1, "max_digits": 1, "allow_parentheses": False}
    with pytest.raises(DataError, match=r"has \d+ different puzzles in 6000 draws .* asked for are 60"):
        drawn(options=options)


def test_another_split_and_unknown_tasks_and_options_are_refused() -> None:
    with pytest.raises(DataError, match="got split 'test' of puzzles; allowed are 'train' and 'heldout'"):
        drawn(split="test")
    with pytest.raises(DataError, match="has no task 'basic_arithmetics'"):
        drawn(task="basic_arithmetics")
    with pytest.raises(DataError, match="has no option 'terms'"):
        drawn(options={"terms": 3})
