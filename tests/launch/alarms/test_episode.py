"""When an alarm is told: once, seldom, and at its end."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from roll_launch.alarms.episode import Episode, Told


def told(faults: str, *, patience: int = 1, quiet: int = 3, repeat: int = 10) -> list[tuple[int, str]]:
    """What is told at which step, counted from 1; `x` is a faulty step."""
    episode = Episode(patience=patience, quiet=quiet, repeat=repeat)
    seen = [(step, episode.see(step, fault=mark == "x")) for step, mark in enumerate(faults, start=1)]
    return [(step, str(what)) for step, what in seen if what is not Told.NOTHING]


def test_a_fault_that_lasts_is_told_at_once_and_then_seldom() -> None:
    assert told("..xxxxxxxxxxxxxxxxxxxxxx") == [(3, "begins"), (13, "lasts"), (23, "lasts")]


def test_patience_counts_steps_in_a_row() -> None:
    assert told("x.xx.xxx", patience=3) == [(8, "begins")]


def test_an_alarm_is_over_after_some_sound_steps_in_a_row() -> None:
    assert told("xx..x...") == [(1, "begins"), (8, "over")]


def test_a_fault_that_comes_back_soon_is_told_again_only_when_a_repeat_is_due() -> None:
    assert told("x...x...x...xxx") == [(1, "begins"), (4, "over"), (13, "begins")]


def test_what_was_not_told_is_not_said_to_be_over() -> None:
    assert told("x...x...") == [(1, "begins"), (4, "over")]


@settings(deadline=None)
@given(st.text("x.", max_size=60), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9))
def test_an_alarm_is_never_told_more_often_than_it_may_be_and_every_end_has_a_beginning(
    faults: str, patience: int, quiet: int, repeat: int
) -> None:
    seen = told(faults, patience=patience, quiet=quiet, repeat=repeat)
    alarms = [step for step, what in seen if what in ("begins", "lasts")]
    assert all(later - earlier >= repeat for earlier, later in itertools.pairwise(alarms))
    assert all(faults[step - 1] == "x" for step in alarms)
    kinds = [what for _, what in seen]
    for earlier, later in itertools.pairwise(["over", *kinds]):
        assert (later == "begins") is (earlier == "over")


@settings(deadline=None)
@given(st.text("x.", max_size=40), st.integers(0, 40))
def test_an_episode_goes_on_from_its_state_as_if_it_had_never_stopped(faults: str, cut: int) -> None:
    whole = Episode(patience=2, quiet=2, repeat=4)
    resumed = Episode(patience=2, quiet=2, repeat=4)
    for step, mark in enumerate(faults):
        if step == cut:
            resumed = Episode(patience=2, quiet=2, repeat=4).restored(resumed.state())
        assert whole.see(step, fault=mark == "x") == resumed.see(step, fault=mark == "x")
