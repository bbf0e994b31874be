"""Adaptive over-provisioning: the fit sees through aborts, the choice pays off and is bounded."""

import numpy as np
import pytest
from roll_scheduler import (
    AdaptiveOverProvision,
    LengthFit,
    OverProvision,
    RoundModel,
    SchedulerError,
    fit_lengths,
)

LONG_TAIL = LengthFit(6.0, 0.7, 0.9, 16_384.0)
NO_TAIL = LengthFit(6.0, 0.002, 0.002, 16_384.0)


def drawn(fit, groups, members, seed=0):
    return fit.draw(np.random.default_rng(seed), groups, members)


def test_the_fit_finds_the_distribution():
    fit = fit_lengths(drawn(LONG_TAIL, 400, 8).tolist())
    assert fit[:3] == pytest.approx(LONG_TAIL[:3], abs=0.08)


def test_the_fit_sees_through_aborts():
    """Every group was stopped when six of its eight members had ended."""
    lengths = np.sort(drawn(LONG_TAIL, 600, 8), axis=1)
    ended = lengths[:, :6].tolist()
    stopped = [[row[5], row[5]] for row in lengths]
    naive, fit = fit_lengths(ended), fit_lengths(ended, stopped)
    assert abs(fit.own - 0.9) < abs(naive.own - 0.9) / 2
    assert fit.mean == pytest.approx(6.0, abs=0.12)
    assert fit.own == pytest.approx(0.9, abs=0.15)


def model(**fields):
    return RoundModel(**{"groups": 32, "group_size": 8, "slots": 512, "defer": False, **fields})


def choice_after(fit, model, rounds=12, **options):
    controller = AdaptiveOverProvision(model, **options)
    for row in drawn(fit, 300, 8).tolist():
        controller.observe(row)
    for _ in range(rounds):
        choice = controller.choose()
    return choice


def test_a_long_tail_gets_more_groups_and_members():
    choice = choice_after(LONG_TAIL, model())
    assert choice is not None and choice.groups > 0 and choice.members > 0


def test_without_a_tail_nothing_more_is_sent_out():
    assert choice_after(NO_TAIL, model()) is None


def test_where_slots_are_short_less_is_sent_out():
    def sent(choice):
        return 1.0 if choice is None else (32 + choice.groups) * (8 + choice.members) / (32 * 8)

    roomy, short = (sent(choice_after(LONG_TAIL, model(slots=slots))) for slots in (1024, 64))
    assert short < roomy


def test_the_choice_is_never_expected_to_be_slower_than_none_and_keeps_to_its_bound():
    for slots in (32, 128, 512):
        for fit in (LONG_TAIL, NO_TAIL, LengthFit(6.0, 1.2, 0.1, 16_384.0)):
            rounds = model(slots=slots, defer=True)
            controller = AdaptiveOverProvision(rounds, most=1.3)
            for row in drawn(fit, 200, 8, seed=slots).tolist():
                controller.observe(row)
            seen = fit_lengths(drawn(fit, 200, 8, seed=slots).tolist())
            for _ in range(6):
                controller.choose()
                assert (32 + controller.groups) * (8 + controller.members) <= 1.3 * 32 * 8
                assert rounds.seconds(seen, groups=controller.groups, members=controller.members) <= (
                    rounds.seconds(seen, groups=0, members=0)
                )


def test_what_it_expects_of_a_round_is_what_a_round_takes():
    """Against groups whose last member ends the round, and enough slots: the mean of maxima."""
    rounds = model(slots=4096, base_s=1.0)
    expected = rounds.seconds(LONG_TAIL, groups=0, members=0, draws=200)
    real = np.mean([drawn(LONG_TAIL, 32, 8, seed=seed).max() for seed in range(1000, 1400)])
    assert expected == pytest.approx(real, rel=0.1)


def test_before_anything_was_seen_it_chooses_nothing():
    assert AdaptiveOverProvision(model()).choose() is None


def test_groups_may_be_of_any_size_and_empty_ones_do_not_count():
    controller = AdaptiveOverProvision(model(), window=4)
    for ended, aborted in (([], []), ([5], []), ([], [7]), ([1, 2, 3], [9, 9])):
        controller.observe(ended, aborted)
    choice = controller.choose()
    assert choice is None or isinstance(choice, OverProvision)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RoundModel(groups=0, group_size=1, slots=1), r"RoundModel.groups: got 0"),
        (lambda: model(base_s=0), r"RoundModel.base_s: got 0"),
        (lambda: AdaptiveOverProvision(model(), most=0.5), r"AdaptiveOverProvision.most: got 0.5"),
        (lambda: AdaptiveOverProvision(model()).observe([float("nan")]), r"got nan tokens"),
        (lambda: fit_lengths([[]]), r"fit_lengths: got 1 groups of which 0 completions ended"),
        (lambda: fit_lengths([[1]], [[1], [2]]), r"2 groups of stopped ones"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()
