"""Sources of prompts: epochs, and the same prompts again after a resume."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import Curriculum, KeyedPrompt, PromptList, PromptLog, SchedulerError


def take(source, count):
    return [drawn.key for drawn in itertools.islice(source, count)]


def again(state):
    return json.loads(json.dumps(state))


def test_each_epoch_has_every_prompt_once_in_an_order_of_its_own():
    epochs = [take(source := PromptList("abcdefgh", seed=1), 8), take(source, 8)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list("01234567")
    assert epochs[0] != epochs[1]
    assert take(PromptList("abcdefgh", seed=1), 16) == epochs[0] + epochs[1]


def test_without_a_seed_the_order_is_that_of_the_list_and_epochs_end():
    assert [drawn.prompt for drawn in PromptList("abc", epochs=2)] == list("abcabc")
    assert PromptList("abc", domain="d").prompt("2") == KeyedPrompt("2", "d", "c")


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 3)))
def test_a_list_goes_on_where_it_was(size, given_before, seed):
    first, second = PromptList(range(size), seed=seed), PromptList(range(size), seed=seed)
    take(first, given_before)
    second.restore(again(first.state()))
    assert take(second, 20) == take(first, 20)


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_a_log_gives_again_what_was_drawn_before_the_snapshot(observed, drawn, wanted):
    """The curriculum's choice depends on what it observed, which came after some of the draws."""

    def curriculum():
        return Curriculum("abcdefgh", explore=0.3)

    log = PromptLog(curriculum())
    keys = take(log, drawn)
    for key in observed:
        log._source.observe(str(key), key / 7)
    wanted = min(wanted, drawn)
    log.forget_before(wanted)
    state = again(log.state())
    after = take(log, 20)

    resumed = PromptLog(curriculum())
    resumed.restore(state)
    resumed.rewind(wanted)
    assert take(resumed, drawn - wanted + 20) == keys[wanted:] + after


def test_a_draw_that_was_forgotten_cannot_be_had_again():
    log = PromptLog(PromptList("abc"))
    take(log, 5)
    log.forget_before(3)
    with pytest.raises(SchedulerError, match=r"PromptLog.rewind: got draw 2, allowed is 3 to 5"):
        log.rewind(2)
    log.rewind(4)
    log.forget_before(99)
    assert log.state()["keys"] == ["1"]  # draw 4 has not been given again yet
    assert take(log, 2) == ["1", "2"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PromptList([]), r"PromptList: got no prompt for domain ''"),
        (lambda: PromptList("a", epochs=0), r"PromptList.epochs: got 0"),
        (lambda: PromptList("abc").prompt("3"), r"PromptList.prompt: got '3', allowed is 0 to 2"),
        (lambda: PromptList("abc").prompt("-1"), r"PromptList.prompt: got '-1'"),
        (lambda: PromptList("abc").restore(PromptList("ab").state()), r"PromptList.restore: got"),
        (lambda: PromptList("abc", seed=1).restore(PromptList("abc").state()), r"PromptList.restore: got"),
        (lambda: PromptLog(PromptList("abc")).restore({}), r"PromptLog.restore: got what is no state"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()


@pytest.mark.parametrize("epochs", [0, 2.5, float("nan"), True])
def test_epochs_that_would_never_end_are_refused(epochs):
    with pytest.raises(
        SchedulerError, match=r"PromptList\.epochs: got .*, allowed is an integer >= 1 or None"
    ):
        PromptList(["a"], epochs=epochs)


def test_a_place_before_the_first_prompt_is_refused():
    state = {**PromptList(["a", "b"]).state(), "given": -1}
    with pytest.raises(SchedulerError, match=r"PromptList\.restore: got .* given >= 0"):
        PromptList(["a", "b"]).restore(state)
