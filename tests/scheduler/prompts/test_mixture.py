"""Mixtures: shares to within one prompt, quotas of every batch, the same after a restart."""

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import Curriculum, Mixture, MixtureDomain, PromptList, PromptLog, SchedulerError


def mixture_of(weights, *, batch=1, until="all", epochs=None, **quotas):
    return Mixture(
        {
            name: MixtureDomain(
                source=PromptList(range(5), seed=3, epochs=epochs), weight=weight, **quotas.get(name, {})
            )
            for name, weight in weights.items()
        },
        batch=batch,
        until=until,
    )


WEIGHTS = st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.01, 10), min_size=1)


@settings(deadline=None)
@given(WEIGHTS)
def test_after_any_number_of_prompts_each_domain_is_within_one_of_its_share(weights):
    total = sum(weights.values())
    count = Counter()
    for number, drawn in enumerate(itertools.islice(mixture_of(weights), 300), start=1):
        count[drawn.domain] += 1
        for name, weight in weights.items():
            assert abs(count[name] - number * weight / total) < 1 + 1e-6


def test_equal_domains_alternate_and_keys_carry_their_domain():
    drawn = list(itertools.islice(mixture_of({"math": 1, "code": 1}), 4))
    assert [each.domain for each in drawn] == ["math", "code", "math", "code"]
    assert drawn[0].key == f"math/{drawn[0].prompt}"


@settings(deadline=None)
@given(data=st.data(), weights=WEIGHTS, batch=st.integers(1, 20))
def test_every_batch_keeps_to_the_quotas(data, weights, batch):
    left = batch
    quotas = {}
    for name in weights:
        least = data.draw(st.integers(0, left))
        left -= least
        most = data.draw(st.one_of(st.none(), st.integers(max(1, least), batch)))
        quotas[name] = {"least": least, "most": most}
    if sum(quota["most"] or batch for quota in quotas.values()) < batch:
        with pytest.raises(SchedulerError, match="quotas ask for"):
            mixture_of(weights, batch=batch, **quotas)
        return
    mixture = mixture_of(weights, batch=batch, **quotas)
    for _ in range(10):
        count = Counter(drawn.domain for drawn in itertools.islice(mixture, batch))
        for name, quota in quotas.items():
            assert quota["least"] <= count[name] <= (quota["most"] or batch)


def test_quotas_bend_the_shares_no_more_than_needed():
    mixture = mixture_of({"a": 8, "b": 1, "c": 1}, batch=10, a={"most": 5})
    assert mixture.shares == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})
    count = Counter(drawn.domain for drawn in itertools.islice(mixture, 1000))
    assert count == {"a": 500, "b": 250, "c": 250}


def test_when_a_domain_ends_the_others_go_on():
    mixture = Mixture(
        {
            "short": MixtureDomain(source=PromptList(range(3), epochs=1), weight=1),
            "long": MixtureDomain(source=PromptList(range(9), epochs=1), weight=1, least=1),
        },
        batch=2,
    )
    drawn = [each.key for each in mixture]
    assert len(drawn) == len(set(drawn)) == 12
    assert drawn[7:] == [f"long/{number}" for number in range(4, 9)]


def test_it_can_end_with_the_first_domain():
    assert len(list(mixture_of({"a": 1, "b": 3}, until="first", epochs=1))) in (6, 7)


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 40), st.integers(1, 7))
def test_it_goes_on_where_it_was(weights, count, batch):
    first, second = (mixture_of(weights, batch=batch, epochs=3) for _ in range(2))
    list(itertools.islice(first, count))
    second.restore(json.loads(json.dumps(first.state())))
    assert list(second) == list(first)


def test_a_curriculum_may_be_a_domain():
    curriculum = Curriculum("abc")
    mixture = Mixture(
        {"hard": MixtureDomain(source=curriculum), "easy": MixtureDomain(source=PromptList("xy"))}
    )
    drawn = next(mixture)
    domain, _, key = drawn.key.partition("/")
    assert domain == "hard"
    assert curriculum.prompt(key).prompt == drawn.prompt
    assert mixture.prompt(drawn.key) == drawn
    log = PromptLog(mixture)
    log.observe(drawn.key, 1.0, weight=50)
    log.observe("easy/0", 0.0)  # a list does not care
    assert curriculum.pass_rate(key) > 0.9
    with pytest.raises(SchedulerError, match=r"Mixture.observe: got 'x/1', domains are"):
        log.observe("x/1", 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Mixture({}), "Mixture: got no domain"),
        (lambda: mixture_of({"a/b": 1}), r"got a domain 'a/b', allowed are names without a slash"),
        (lambda: mixture_of({"a": 0}), r"MixtureDomain.weight: got 0, allowed is > 0"),
        (lambda: mixture_of({"a": 1}, batch=0), r"Mixture.batch: got 0"),
        (lambda: mixture_of({"a": 1}, until="never"), r"Mixture.until: got 'never'"),
        (lambda: mixture_of({"a": 1}, a={"least": -1}), r"MixtureDomain.least: got -1"),
        (
            lambda: mixture_of({"a": 1}, a={"least": 3, "most": 2}),
            r"MixtureDomain.most: got 2, allowed is an integer of at least 3",
        ),
        (
            lambda: mixture_of({"a": 1, "b": 1}, batch=3, a={"least": 2}, b={"least": 2}),
            r"ask for 4 to 6 prompts",
        ),
        (lambda: mixture_of({"a": 1}).prompt("b/1"), r"Mixture.prompt: got 'b/1', domains are \['a'\]"),
        (lambda: mixture_of({"a": 1}).restore(mixture_of({"a": 2}).state()), r"Mixture.restore: got weights"),
        (lambda: mixture_of({"a": 1}).restore({}), r"Mixture.restore: got format None"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()
