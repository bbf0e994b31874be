import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import AgenticError, EpisodeRow, History, Segment, TranscriptError, episode_rows


def sampled(ids: list[int], *, version: int = 0, finish: str = "stop") -> Segment:
    return Segment(
        source="sampled",
        token_ids=np.array(ids, int),
        logprobs=-np.array(ids, float) / 10,
        versions=((version, len(ids)),) if ids else (),
        finish_reason=finish,  # type: ignore[arg-type]
    )


def seen(ids: list[int]) -> Segment:
    return Segment(source="environment", token_ids=np.array(ids, int))


@pytest.fixture
def history() -> History:
    """Two turns, then a fork after the first one with another two."""
    history = History()
    first = [seen([1, 2]), sampled([3, 4], version=5)]
    history.current.extend([*first, seen([5]), sampled([6], version=6)])
    history.start("fork", first_turn=2, inherited=first).extend(
        [seen([7]), sampled([8, 9], version=7), seen([10]), sampled([11], version=7, finish="length")]
    )
    return history


def trained(row: EpisodeRow) -> list[int]:
    return row.token_ids[row.response_mask].tolist()


def test_rows_by_trajectory_are_one_a_branch_and_train_every_token_once(history: History) -> None:
    one, other = episode_rows(history)
    assert trained(one) == [3, 4, 6]
    assert trained(other) == [8, 9, 11]
    assert other.token_ids.tolist() == [1, 2, 3, 4, 7, 8, 9, 10, 11]
    assert one.turns.tolist() == [0, 1]
    assert other.turns.tolist() == [2, 3]
    assert one.units.tolist() == [0, 0]
    assert other.versions.tolist() == [-1, -1, -1, -1, -1, 7, 7, -1, 7]
    assert (one.truncated, other.truncated) == (False, True)


def test_rows_by_step_have_the_prompt_of_sampling(history: History) -> None:
    rows = episode_rows(history, "step")
    assert [row.token_ids.tolist() for row in rows] == [
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 7, 8, 9],
        [1, 2, 3, 4, 7, 8, 9, 10, 11],
    ]
    assert [trained(row) for row in rows] == [[3, 4], [6], [8, 9], [11]]
    assert [row.turns.tolist() for row in rows] == [[0], [1], [2], [3]]
    assert [row.truncated for row in rows] == [False, False, False, True]
    assert rows[1].behavior_logprobs.tolist() == pytest.approx([0, 0, 0, 0, 0, -0.6])


def test_concatenated_steps_are_units_of_their_own_in_one_row(history: History) -> None:
    by_step, together = episode_rows(history, "step"), episode_rows(history, "step_concatenated")
    assert [row.units.tolist() for row in together] == [[0, 1], [0, 1]]
    assert sum(len(row.token_ids) for row in together) < sum(len(row.token_ids) for row in by_step)
    for row in together:
        for (start, end), turn in zip(row.spans, row.turns, strict=True):
            alone = next(other for other in by_step if other.turns[0] == turn)
            assert row.token_ids[:end].tolist() == alone.token_ids.tolist()
            assert alone.spans.tolist() == [[start, end]]


def test_inherited_turns_are_trained_on_demand_with_their_own_numbers() -> None:
    history = History()
    prefix = [seen([1]), sampled([2]), seen([3]), sampled([4])]
    history.start("fork: turn 2", first_turn=2, inherited=prefix).extend([seen([5]), sampled([6])])
    (plain,) = episode_rows(history)
    (all_of_it,) = episode_rows(history, train_inherited=True)
    assert (trained(plain), plain.turns.tolist()) == ([6], [2])
    assert (trained(all_of_it), all_of_it.turns.tolist()) == ([2, 4, 6], [0, 1, 2])


def test_branch_without_sampled_tokens_makes_no_row() -> None:
    history = History()
    history.current.append(seen([1]))
    assert episode_rows(history) == ()


def test_unknown_kind_and_branch_without_reason_are_refused() -> None:
    with pytest.raises(AgenticError, match="made by trajectory, step, step_concatenated; got 'turn'"):
        episode_rows(History(), "turn")  # type: ignore[arg-type]
    with pytest.raises(TranscriptError, match="needs the reason"):
        History().start("", first_turn=0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=8))
def test_every_sampled_token_is_trained_once_whatever_the_branches(turns: list) -> None:
    history, number, wanted = History(), 0, []
    for turn, (context, size, forks) in enumerate(turns):
        if forks and turn:
            history.start("rewritten", first_turn=turn)
        said = list(range(100 + number, 100 + number + size))
        wanted += said
        number += size
        history.current.extend([seen([1] * context), sampled(said)])
    for kind in ("trajectory", "step", "step_concatenated"):
        rows = episode_rows(history, kind)  # type: ignore[arg-type]
        assert [token for row in rows for token in trained(row)] == wanted
        turns_of = [int(turn) for row in rows for turn in row.turns]
        assert turns_of == list(range(len(turns)))
