import asyncio
import math

import pytest
from roll_rewards import GradeItem, RewardError, Score, check_grader, make_grader
from roll_rewards.graders import Component, Weighted


class Fixed:
    """Gives one score, and counts how often it was asked."""

    def __init__(self, *scores: Score | Exception) -> None:
        self.scores = list(scores)
        self.calls = 0

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        self.calls += 1
        score = self.scores[min(self.calls, len(self.scores)) - 1]
        if isinstance(score, Exception):
            raise score
        return score


def fixed(value: float, **fields: object) -> Fixed:
    return Fixed(Score(value=value, **fields))  # type: ignore[arg-type]  # fields of Score by name


async def test_weighted_is_the_sum_and_keeps_every_part_as_a_metric() -> None:
    grader = Weighted(
        parts={
            "right": Component(grader=fixed(1.0, parsed="42", parts={"boxed": 1.0}), weight=2.0),
            "brief": Component(grader=fixed(0.5, timed_out=True), weight=-1.0),
            "seen": Component(grader=fixed(7.0), weight=0.0),
        }
    )
    score = await grader.grade("r", "x")
    assert score.value == 1.5
    assert score.parts == {"right": 1.0, "right/boxed": 1.0, "brief": 0.5, "seen": 7.0}
    assert score.parsed == "42" and score.timed_out


async def test_closed_gate_saves_the_other_graders_and_gives_the_gate_value() -> None:
    costly = fixed(1.0)
    parts = {"gate": Component(grader=fixed(0.4), at_least=0.5), "costly": Component(grader=costly)}
    score = await Weighted(parts=parts, gate_value=-1.0).grade("r", "x")
    assert (score.value, costly.calls, score.parts) == (-1.0, 0, {"gate": 0.4})
    open_parts = {**parts, "gate": Component(grader=fixed(0.5), at_least=0.5)}
    assert (await Weighted(parts=open_parts).grade("r", "x")).value == 1.5


@pytest.mark.parametrize(("value", "clipped"), [(5.0, 1.0), (-5.0, 0.0), (0.25, 0.25)])
async def test_clip_bounds_the_sum(value: float, clipped: float) -> None:
    grader = Weighted(parts={"a": Component(grader=fixed(value))}, clip=(0.0, 1.0))
    assert (await grader.grade("r", "x")).value == clipped


async def test_part_without_verdict_leaves_the_whole_without_one() -> None:
    grader = Weighted(
        parts={"a": Component(grader=fixed(1.0)), "b": Component(grader=Fixed(ValueError("disk full")))}
    )
    score = await grader.grade("r", "x")
    assert math.isnan(score.value) and score.failure is not None
    assert "part 'b'" in score.failure.message and "disk full" in score.failure.message


async def test_metric_without_verdict_is_left_out() -> None:
    grader = Weighted(
        parts={"a": Component(grader=fixed(1.0)), "m": Component(grader=Fixed(ValueError("x")), weight=0.0)}
    )
    score = await grader.grade("r", "x")
    assert (score.value, score.parts) == (1.0, {"a": 1.0})


async def test_cancelling_a_sum_cancels_its_parts() -> None:
    cancelled = asyncio.Event()

    class Slow:
        async def grade(self, response: str, reference: object, **columns: object) -> Score:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return Score(value=1.0)

    task = asyncio.ensure_future(Weighted(parts={"a": Component(grader=Slow())}).grade("r", "x"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": {}}, "at least one part"),
        ({"parts": {"a": {"name": "exakt"}}}, "part 'a'.*did you mean 'exact'"),
        ({"parts": {"a": {"name": "exact", "wieght": 1}}}, "unknown keys wieght"),
        ({"parts": {"a": {"name": "exact", "weight": "1"}}}, "'weight'.*must be a number"),
        ({"parts": {"a": {"name": "exact", "weight": math.inf}}}, "must be finite"),
        ({"parts": {"a": {"name": "exact"}}, "clip": [1.0, 0.0]}, "low, high"),
        ({"parts": {"a": {"name": "exact"}}, "clip": [1.0]}, "a list of 2"),
        ({"parts": {"a": {"options": {}}}}, "must be a grader or a mapping"),
        ({"parts": {"a": 3}}, "'parts'.*must be a mapping"),
    ],
)
def test_wrong_weighted_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        make_grader("weighted", **options)


async def test_route_is_found_by_domain_or_by_the_first_known_tag() -> None:
    grader = make_grader(
        "routed",
        by="tag",
        routes={"sums": {"name": "number"}, "words": {"name": "exact", "options": {"case_sensitive": False}}},
    )
    score = await grader.grade("2.0", "2", tag="sums")
    assert (score.value, score.parts) == (1.0, {"sums": 1.0})
    assert (await grader.grade("A", "a", tag=["new", "words"])).parts == {"words": 1.0}
    with pytest.raises(RewardError, match=r"no route for tag='unheard'.*sums"):
        await grader.grade("1", "1", tag="unheard")


async def test_row_without_a_route_goes_to_the_default() -> None:
    grader = make_grader("routed", routes={"a": {"name": "number"}}, default={"name": "exact"})
    assert (await grader.grade("x", "x")).parts == {"default": 1.0}


async def test_cache_asks_once_for_a_verdict_and_again_after_a_failure() -> None:
    inner = Fixed(ValueError("down"), Score(value=0.5))
    grader = make_grader("cached", grader=inner)
    with pytest.raises(ValueError, match="down"):
        await grader.grade("r", "x", domain="a")
    for _ in range(3):
        assert (await grader.grade("r", "x", domain="a")).value == 0.5
    assert inner.calls == 2
    await grader.grade("r", "x", domain="b")
    await grader.grade("r", ["x"], domain="a")
    assert inner.calls == 4


async def test_cache_forgets_what_was_not_asked_for_longest() -> None:
    inner = fixed(1.0)
    grader = make_grader("cached", grader=inner, max_entries=2)
    for response in ("a", "b", "a", "c", "a", "b"):
        await grader.grade(response, "x")
    assert inner.calls == 4


@pytest.mark.parametrize("name", ["weighted", "routed", "cached"])
async def test_composed_graders_keep_the_promises_of_the_seam(name: str) -> None:
    options: dict[str, dict[str, object]] = {
        "weighted": {"parts": {"a": {"name": "exact"}, "b": {"name": "number", "weight": 0.5}}},
        "routed": {"routes": {"a": {"name": "exact"}}, "default": {"name": "exact"}},
        "cached": {"grader": {"name": "exact"}},
    }
    results = await check_grader(make_grader(name, **options[name]), GradeItem(response="2", reference="2"))
    assert [result for result in results if not result.passed] == []
