import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import AgenticError, fit_history, fit_observation


def chat(*roles: str) -> list[dict]:
    return [{"role": role, "content": str(index)} for index, role in enumerate(roles)]


def test_oldest_turn_goes_together_with_its_answers() -> None:
    messages = chat("system", "user", "assistant", "tool", "assistant", "user")
    kept = fit_history(messages, [5, 5, 5, 5, 5, 5], budget=20)
    assert kept is not None
    assert [message["content"] for message in kept] == ["0", "5"]


def test_question_and_last_calls_survive_a_long_search() -> None:
    messages = chat("system", "user", "assistant", "tool", "assistant", "tool", "tool")
    for budget, contents in ((7, "0123456"), (6, "01456"), (5, "01456"), (4, None)):
        kept = fit_history(messages, [1] * 7, budget=budget)
        assert (kept and "".join(m["content"] for m in kept)) == contents


@given(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=9), st.integers(0, 12))
def test_what_is_kept_fits_and_ends_with_the_last_message(roles: list[str], budget: int) -> None:
    messages = chat("system", *roles, "user")
    kept = fit_history(messages, [1] * len(messages), budget=budget)
    if budget < 2:
        assert kept is None
    else:
        assert kept is not None
        assert len(kept) <= budget
        assert (kept[0], kept[-1]) == (messages[0], messages[-1])


def test_history_that_fits_stays_whole_and_one_that_cannot_is_none() -> None:
    messages = chat("system", "user", "assistant", "user")
    assert fit_history(messages, [1, 1, 1, 1], budget=4) == messages
    assert fit_history(messages, [5, 1, 1, 5], budget=9) is None
    with pytest.raises(AgenticError, match="a size for each of 4 messages, got 1"):
        fit_history(messages, [1], budget=9)


@given(st.lists(st.integers(0, 99), max_size=60), st.integers(1, 30), st.integers(0, 5), st.floats(0, 1))
def test_cut_observation_keeps_its_ends_and_never_exceeds_the_limit(
    tokens: list[int], limit: int, mark: int, share: float
) -> None:
    cut = fit_observation(tokens, limit=limit, mark=[-1] * mark, keep_end=share)
    assert len(cut) <= limit
    if len(tokens) <= limit:
        assert cut == tokens
    else:
        plain = [token for token in cut if token >= 0]
        assert len(cut) == limit
        head = next(n for n in range(len(plain), -1, -1) if plain[:n] == tokens[:n])
        tail = len(plain) - head
        assert plain[head:] == tokens[len(tokens) - tail :]


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(AgenticError):
        fit_observation([1], limit=0)
