"""Stop strings cut every token that contains or follows their first character."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from roll_rollout import kept_before_stop

PIECES = ["a", "b", "ab", "ba", "\n", "Obs", "ervation", ":", "bab"]


def decode(ids) -> str:
    return "".join(PIECES[each] for each in ids)


def first_cut(ids: list[int], stop: tuple[str, ...]) -> tuple[int, int] | None:
    """Feeds tokens one by one; the step at which a stop string is found and how many tokens survive."""
    for step in range(1, len(ids) + 1):
        kept = kept_before_stop(ids[:step], stop, decode)
        if kept is not None:
            return step, kept
    return None


def test_stop_string_inside_one_token_cuts_that_token():
    assert kept_before_stop([0, 1, 5], ("bs",), decode) == 2


def test_stop_string_across_tokens_cuts_from_the_token_with_its_first_character():
    assert kept_before_stop([0, 4, 5, 6, 7], ("Observation:",), decode) == 2


def test_token_that_only_shares_its_end_with_the_stop_string_is_cut_whole():
    assert kept_before_stop([0, 2, 1], ("bb",), decode) == 1


def test_no_stop_string_keeps_everything():
    assert kept_before_stop([0, 1, 2], ("Observation",), decode) is None


def test_earliest_of_several_stop_strings_wins():
    assert kept_before_stop([0, 1, 8], ("bab", "bbab", "zz"), decode) == 1


def test_first_token_may_be_cut():
    assert kept_before_stop([5], ("O",), decode) == 0


@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=120),
    stop=st.lists(st.text("ab\nOs:", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
@example(ids=[0] * 100 + [5, 6], stop=("Observation",))
def test_cut_is_where_a_search_through_the_whole_text_puts_it(ids, stop):
    expected = None
    for step in range(1, len(ids) + 1):
        starts = [at for at in (decode(ids[:step]).find(each) for each in stop) if at >= 0]
        if starts:
            kept = max(k for k in range(step) if len(decode(ids[:k])) <= min(starts))
            expected = (step, kept)
            break
    assert first_cut(ids, stop) == expected


@pytest.mark.parametrize(
    ("text", "stop", "kept_text"),
    [
        ("né en été!", "été", "né en "),
        ("a→b", "→", "a"),
        ("日本語です", "語", "日本"),
        ("x\u0301y stop", " st", "x\u0301y"),
        ("🎲🎲🎯🎲", "🎯", "🎲🎲"),
    ],
)
def test_characters_of_several_tokens_are_kept_or_cut_whole(text, stop, kept_text, byte_tokenizer):
    def decode_bytes(ids) -> str:
        return byte_tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    ids = byte_tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    for step in range(1, len(ids) + 1):
        kept = kept_before_stop(ids[:step], (stop,), decode_bytes)
        if kept is not None:
            break
    assert decode_bytes(ids[:kept]) == kept_text
    assert step == len((text[: text.index(stop)] + stop).encode())
