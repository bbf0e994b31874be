"""Predicted lengths: calibrated, bounded in memory, sharper with what is known of the prompt."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import LengthEstimator, LengthPredictor, LengthPrior, SchedulerError


def drawn(prompts, members, *, median=1500.0, between=0.8, own=0.5, seed=0):
    """Lengths [prompts][members] of a lognormal with a part in common to a prompt."""
    rng = random.Random(seed)
    means = [math.log(median) + between * rng.gauss(0, 1) for _ in range(prompts)]
    return [[math.exp(mean + own * rng.gauss(0, 1)) for _ in range(members)] for mean in means]


def rank_correlation(first, second):
    def ranks(values):
        order = sorted(range(len(values)), key=values.__getitem__)
        place = [0] * len(values)
        for rank, index in enumerate(order):
            place[index] = rank
        return place

    a, b = ranks(first), ranks(second)
    mean = (len(a) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return top / sum((x - mean) ** 2 for x in a)


@pytest.fixture(scope="module")
def taught():
    """A predictor that has seen 8 completions of each of 500 prompts, and the lengths of 8 more of each."""
    predictor = LengthPredictor()
    lengths = drawn(500, 16)
    for prompt, row in enumerate(lengths):
        for tokens in row[:8]:
            predictor.observe(f"p{prompt}", "math", tokens)
    return predictor, [row[8:] for row in lengths]


def test_it_is_what_the_queue_asks_for():
    assert isinstance(LengthPredictor(), LengthEstimator)


def test_spreads_are_found(taught):
    predictor, _ = taught
    assert math.sqrt(predictor._own.variance) == pytest.approx(0.5, abs=0.02)
    assert math.sqrt(predictor._all.variance) == pytest.approx(math.hypot(0.8, 0.5), abs=0.06)


def test_seen_prompts_are_ranked_nearly_as_well_as_their_means_allow(taught):
    predictor, ahead = taught
    truth = [math.fsum(math.log(tokens) for tokens in row) / len(row) for row in ahead]
    predicted = [predictor.expected(f"p{prompt}", "math") for prompt in range(len(ahead))]
    assert rank_correlation(predicted, truth) > 0.93


def test_the_mean_is_calibrated(taught):
    predictor, ahead = taught
    real = math.fsum(math.fsum(row) for row in ahead)
    predicted = math.fsum(8 * predictor.expected(f"p{prompt}", "math") for prompt in range(len(ahead)))
    assert predicted == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_quantiles_hold_what_they_say(taught, share):
    predictor, ahead = taught
    below = [
        tokens <= predictor.quantile(share, f"p{prompt}", "math")
        for prompt, row in enumerate(ahead)
        for tokens in row
    ]
    assert sum(below) / len(below) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("so_far", [500, 2000, 6000])
def test_what_has_run_so_long_is_expected_to_run_as_much_longer_as_it_does(taught, so_far):
    predictor, ahead = taught
    pairs = [
        (predictor.expected(f"p{prompt}", "math", so_far=so_far), tokens)
        for prompt, row in enumerate(ahead)
        for tokens in row
        if tokens > so_far
    ]
    assert len(pairs) > 200
    predicted, real = (math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True))
    assert predicted == pytest.approx(real, rel=0.08)


def test_siblings_that_run_without_an_end_make_a_prompt_longer(taught):
    predictor, _ = taught
    unknown = predictor.expected("new", "math")
    told = [predictor.expected("new", "math", running=(tokens,) * 4) for tokens in (10, 1500, 6000)]
    assert told[0] == pytest.approx(unknown, rel=0.01)
    assert unknown < told[1] < told[2]


def test_running_siblings_tell_what_their_ends_would():
    """Prompts of which four members run at 4,000 tokens: their other members are as long as predicted."""
    predictor = LengthPredictor()
    lengths = drawn(4000, 5, seed=2)
    for prompt, row in enumerate(lengths[:1000]):
        for tokens in row:
            predictor.observe(prompt, "", tokens)
    long = [row[4] for row in lengths[1000:] if min(row[:4]) > 4000]
    predicted = predictor.expected("new", running=(4000,) * 4)
    assert len(long) > 100
    assert predicted == pytest.approx(math.fsum(long) / len(long), rel=0.15)


def test_a_truncated_completion_counts_as_longer_than_it_looks():
    cut, whole = (LengthPredictor(LengthPrior(median=300)) for _ in range(2))
    for _ in range(5):
        cut.observe("p", "", 1000, truncated=True)
        whole.observe("p", "", 1000)
    assert cut.expected("p") > 1.3 * whole.expected("p")


def test_domains_differ_and_a_new_one_begins_at_the_mean_of_all():
    predictor = LengthPredictor()
    for row in drawn(200, 1, median=2000, between=0.1, own=0.1):
        predictor.observe(None, "math", row[0])
    for row in drawn(200, 1, median=200, between=0.1, own=0.1):
        predictor.observe(None, "chat", row[0])
    chat, new, math_ = (predictor.quantile(0.5, None, domain) for domain in ("chat", "new", "math"))
    assert chat == pytest.approx(200, rel=0.15)
    assert math_ == pytest.approx(2000, rel=0.15)
    assert chat < new < math_


def test_lengths_that_grow_in_training_are_followed():
    predictor = LengthPredictor(memory=200, prompt_memory=8)
    for epoch, median in enumerate((400, 800, 1600)):
        for prompt, row in enumerate(drawn(100, 8, median=median, between=0.3, own=0.3, seed=epoch)):
            for tokens in row:
                predictor.observe(prompt, "", tokens)
    assert predictor.quantile(0.5, "new") == pytest.approx(1600, rel=0.15)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(0, 1e6), st.booleans()),
        max_size=60,
    ),
    st.floats(0, 20_000),
    st.lists(st.floats(0, 1e5), max_size=6),
)
def test_predictions_are_finite_and_within_their_limits(seen, so_far, running):
    predictor = LengthPredictor(cap=16_384, most_prompts=3)
    for key, tokens, truncated in seen:
        predictor.observe(key, "d", tokens, truncated)
    for key in (None, 0, 1):
        length = predictor.expected(key, "d", so_far=so_far, running=running)
        assert min(so_far, 16_384) <= length <= 16_384
        low, high = (
            predictor.quantile(share, key, "d", so_far=so_far, running=running) for share in (0.2, 0.8)
        )
        assert min(so_far, 16_384) <= low <= high <= 16_384
    assert len(predictor._prompts) <= 3


@settings(deadline=None)
@given(st.floats(1, 1e5), st.floats(1, 1e5))
def test_more_tokens_so_far_never_mean_a_shorter_completion(first, second):
    predictor = LengthPredictor(cap=16_384)
    low, high = sorted((first, second))
    assert predictor.expected("p", so_far=low) <= predictor.expected("p", so_far=high) * (1 + 1e-9)


def test_the_mean_below_a_cap_is_that_of_the_capped_lengths():
    predictor = LengthPredictor(LengthPrior(median=1000, prompt_spread=0.6, completion_spread=0.8), cap=2000)
    rng = random.Random(4)
    draws = [min(2000.0, 1000 * math.exp(rng.gauss(0, 1.0))) for _ in range(100_000)]
    assert predictor.expected(None) == pytest.approx(sum(draws) / len(draws), rel=0.01)


def test_the_prompt_that_was_seen_longest_ago_is_forgotten_first():
    predictor = LengthPredictor(most_prompts=2)
    for key in ("a", "b", "a", "c"):
        predictor.observe(key, "", 10)
    assert list(predictor._prompts) == ["a", "c"]
    predictor.forget("a")
    predictor.forget("never seen")
    assert list(predictor._prompts) == ["c"]


def test_state_survives_json_and_predicts_the_same(taught):
    predictor, _ = taught
    again = LengthPredictor()
    again.restore(json.loads(json.dumps(predictor.state())))
    for prompt in (0, 17, 499):
        assert again.expected(f"p{prompt}", "math") == predictor.expected(f"p{prompt}", "math")
    again.observe("p1", "math", 5000)
    predictor_before = predictor.expected("p1", "math")
    assert again.expected("p1", "math") > predictor_before


@pytest.mark.parametrize("state", [{}, {"format": 2}, {"format": 1, "own": [1]}, {"format": 1, "own": 3}])
def test_what_is_no_state_is_refused_and_changes_nothing(state):
    predictor = LengthPredictor()
    before = predictor.state()
    with pytest.raises(SchedulerError, match=r"LengthPredictor.restore: got"):
        predictor.restore(state)
    assert predictor.state() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthPrior(median=0.5), r"LengthPrior.median: got 0.5, allowed is >= 1"),
        (lambda: LengthPrior(completion_spread=0), r"LengthPrior.completion_spread: got 0"),
        (lambda: LengthPredictor(cap=0), r"LengthPredictor.cap: got 0, allowed is >= 1"),
        (lambda: LengthPredictor().quantile(1.0, "p"), r"quantile: got 1.0, allowed is 0 < share < 1"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(SchedulerError, match=message):
        make()


@pytest.mark.parametrize("tokens", [float("nan"), float("inf"), float("-inf")])
def test_a_length_that_is_no_number_is_refused_and_spoils_nothing(tokens):
    predictor = LengthPredictor()
    before = predictor.expected("p")
    with pytest.raises(SchedulerError, match=r"LengthPredictor\.observe: got .* tokens, allowed is a finite"):
        predictor.observe("p", "math", tokens)
    assert predictor.expected("p") == before


def test_a_length_beyond_reason_gives_a_number_still():
    predictor = LengthPredictor()
    for _ in range(50):
        predictor.observe("p", "math", 1e308)
    assert math.isfinite(predictor.expected("p", "math"))
    assert math.isfinite(predictor.quantile(0.9, "p", "math"))
