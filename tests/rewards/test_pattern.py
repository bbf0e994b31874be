import asyncio
import time
from pathlib import Path

import pytest
from roll_rewards import RewardError, grade_with_deadline, make_grader
from roll_rewards.graders import pattern as pattern_module
from roll_rewards.graders import regex_match


async def test_pattern_without_a_group_only_asks_for_a_match() -> None:
    grader = make_grader("pattern", pattern=r"<answer>.*</answer>")
    score = await grader.grade("so <answer>7</answer>.", None)
    assert score.value == 1.0
    assert score.parsed == "<answer>7</answer>"
    assert (await grader.grade("so 7", None)).value == 0.0


async def test_group_is_compared_with_the_reference() -> None:
    grader = make_grader("pattern", pattern=r"<answer>(.*?)</answer>", group=1)
    assert (await grader.grade("<answer> 7 </answer>", "7")).value == 1.0
    wrong = await grader.grade("<answer>8</answer>", "7")
    assert wrong.value == 0.0
    assert wrong.parsed == "8"
    assert (await grader.grade("7", "7")).parsed is None


async def test_named_group_and_several_references() -> None:
    grader = make_grader("pattern", pattern=r"(?P<choice>[A-D])\)", group="choice")
    assert (await grader.grade("I take B)", ["A", "B"])).value == 1.0


async def test_last_match_counts() -> None:
    grader = make_grader("pattern", pattern=r"\[(\d)\]", group=1)
    assert (await grader.grade("[1], no: [2]", "2")).value == 1.0
    assert (await grader.grade("[1], no: [2]", "1")).value == 0.0


async def test_full_match_admits_nothing_around_it() -> None:
    grader = make_grader("pattern", pattern=r"\d+", match="full")
    assert (await grader.grade("123", None)).value == 1.0
    assert (await grader.grade("123 ", None)).value == 0.0


async def test_group_that_took_no_part_is_a_wrong_answer() -> None:
    score = await make_grader("pattern", pattern=r"a(b)?", group=1).grade("a", "b")
    assert score.value == 0.0
    assert score.parsed is None


async def test_response_beyond_the_limit_is_refused_with_a_verdict() -> None:
    score = await make_grader("pattern", pattern="a", max_chars=10).grade("a" * 11, None)
    assert score.value == 0.0
    assert score.parts == {"too_long": 1.0}


async def test_repeated_groups_are_matched_in_a_child_with_the_same_result() -> None:
    grader = make_grader("pattern", pattern=r"(?:(\w+),)+(?P<last>\w+)$", group="last")
    assert (await grader.grade("one,two,thrée", "thrée")).value == 1.0
    assert (await grader.grade("no list", "list")).value == 0.0
    assert (await grader.grade("\ud800 a,b", "b")).parsed == "b"


async def test_plain_pattern_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_child(*command: str, **options: object) -> None:
        raise OSError(f"started {command}")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_child)
    grader = make_grader("pattern", pattern=r"<answer>(.*?)</answer>", group=1)
    assert (await grader.grade("x" * 2000 + "<answer>7</answer>", "7")).value == 1.0
    with pytest.raises(OSError, match=r"regex_match\.py"):
        await make_grader("pattern", pattern=r"(a+)+").grade("aaa", None)


async def test_catastrophic_pattern_is_a_timed_out_verdict_and_never_blocks_the_loop() -> None:
    grader = make_grader("pattern", pattern=r"(a+)+$", timeout_s=0.3)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    score = await grader.grade("a" * 40 + "b", None)
    ticking.cancel()
    assert score.value == 0.0
    assert score.timed_out
    assert ticks > 3


async def test_polynomial_pattern_on_a_long_response_is_bounded_too() -> None:
    grader = make_grader("pattern", pattern=r"(.*)a(.*)a(.*)b", timeout_s=0.3)
    started = time.perf_counter()
    score = await grader.grade("a" * 20_000, None)
    assert score.timed_out
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import threading; threading.Event().wait()", "its child gave no answer within 0.2 s"),
        ("raise MemoryError('no room')", "its child failed: .*MemoryError: no room"),
    ],
)
async def test_broken_child_is_a_failure_and_no_verdict(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(script)
    monkeypatch.setattr(regex_match, "__file__", str(tmp_path / "child.py"))
    if "threading" in script:
        monkeypatch.setattr(pattern_module, "_WALL_S", 0.1)
    grader = make_grader("pattern", pattern="(a+)+$", timeout_s=0.01)
    with pytest.raises(RewardError, match=f"(?s){message}"):
        await grader.grade("a", None)


async def test_a_shorter_deadline_stops_the_child() -> None:
    grader = make_grader("pattern", pattern=r"(a+)+$", timeout_s=30)
    score = await grade_with_deadline(grader, "a" * 40 + "b", None, deadline_s=0.3)
    assert score.failure is not None
    assert score.failure.kind == "deadline"
    assert score.seconds < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "("}, "does not compile: missing ), unterminated subpattern"),
        ({"pattern": "(a)", "group": 2}, "'group' of grader 'pattern' is 2, but the pattern has only [0, 1]"),
        ({"pattern": "(?P<x>a)", "group": "y"}, "but the pattern has only [0, 1, 'x']"),
        ({"pattern": "a", "max_chars": 0}, "must be above 0"),
        ({"pattern": "a", "timeout_s": 0}, "must be above 0"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(RewardError) as caught:
        make_grader("pattern", **options)
    assert message in str(caught.value)


async def test_group_needs_a_reference() -> None:
    with pytest.raises(RewardError, match="reference of grader 'pattern'"):
        await make_grader("pattern", pattern="(a)", group=1).grade("a", None)
