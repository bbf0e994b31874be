import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import AgenticError, StopCut, cut_at_stop

PIECES = ["Action", ": f(1)", "\n", "Observ", "ation:", " 42", "\nAction"]


def test_text_and_tokens_end_before_the_stop_sequence() -> None:
    assert cut_at_stop(PIECES, ["Observation:"]) == StopCut(
        text="Action: f(1)\n", stop="Observation:", tokens=3
    )


def test_token_that_reaches_into_the_stop_sequence_is_kept_and_the_text_is_exact() -> None:
    assert cut_at_stop(["f(1)", "\nObs", "ervation:"], ["Observation:"]) == StopCut(
        text="f(1)\n", stop="Observation:", tokens=2
    )


def test_response_without_a_stop_sequence_is_left_alone() -> None:
    assert cut_at_stop(["f", "(1)"], ["Observation:"]) == StopCut(text="f(1)", stop=None, tokens=2)
    assert cut_at_stop(["f", "(1)"], []).tokens == 2


def test_stop_sequence_at_the_start_leaves_nothing() -> None:
    assert cut_at_stop(["", "Obs", "!"], ["Obs"]) == StopCut(text="", stop="Obs", tokens=0)


def test_first_stop_sequence_counts_and_of_several_there_the_longest() -> None:
    assert cut_at_stop(["a", "b", "c"], ["c", "b", "bc"]) == StopCut(text="a", stop="bc", tokens=1)


def test_token_that_completes_no_character_goes_with_the_next() -> None:
    assert cut_at_stop(["a", "", "é", "b"], ["é"]) == StopCut(text="a", stop="é", tokens=1)


@given(
    st.lists(st.text("ab;", max_size=3), max_size=12),
    st.lists(st.text("ab;", min_size=1, max_size=3), max_size=3),
)
def test_kept_tokens_cover_the_kept_text_and_no_more_than_a_part_of_the_stop(
    pieces: list[str], stops: list[str]
) -> None:
    cut = cut_at_stop(pieces, stops)
    kept = "".join(pieces[: cut.tokens])
    assert kept.startswith(cut.text)
    assert not any(stop in cut.text for stop in stops)
    if cut.stop is None:
        assert kept == "".join(pieces)
    elif cut.tokens:
        assert len("".join(pieces[: cut.tokens - 1])) < len(cut.text)


def test_empty_stop_sequence_is_refused() -> None:
    with pytest.raises(AgenticError, match="must not be empty"):
        cut_at_stop(["a"], ["x", ""])
