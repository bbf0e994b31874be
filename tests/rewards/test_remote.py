"""The `remote` grader against a service on this machine: keys, repeats, polling, broken answers."""

import asyncio
import random
import threading
from typing import Any

import pytest
from grading_service import Request, serve
from roll_rewards import GradeItem, RewardError, check_grader, grade_with_deadline, make_grader
from roll_rewards.remote.patience import Patience, authorization, send_patiently
from roll_rewards.remote.rate import RateLimit
from roll_rewards.remote.serving import GradingService
from roll_rewards.remote.transport import RemoteError, Reply, send


def equal(request: Request, number: int) -> tuple[int, Any]:
    return 200, {"score": float(request.body["response"] == request.body["reference"]), "parsed": "x"}


async def test_score_parts_and_timeout_come_from_the_answer() -> None:
    body = {"score": 0.5, "parts": {"style": 1, "note": "x"}, "parsed": "42", "timed_out": True}
    with serve(lambda request, number: (200, body)) as service:
        score = await make_grader("remote", url=service.url).grade("r", "g")
    assert (score.value, score.parts, score.parsed, score.timed_out) == (0.5, {"style": 1.0}, "42", True)


async def test_row_is_sent_with_the_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADER_KEY", "s3cret")
    with serve(equal) as service:
        grader = make_grader(
            "remote", url=f"{service.url}/grade?v=1", key_env="GRADER_KEY", columns=["domain"]
        )
        await grader.grade("r", "g", domain="sums", other=1, handle=object())
        request = service.requests[0]
    assert (request.path, request.headers["authorization"]) == ("/grade?v=1", "Bearer s3cret")
    assert request.body == {"response": "r", "reference": "g", "columns": {"domain": "sums"}}


async def test_missing_key_is_named_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADER_KEY", raising=False)
    with serve(equal) as service:
        with pytest.raises(RewardError, match="environment variable GRADER_KEY"):
            await make_grader("remote", url=service.url, key_env="GRADER_KEY").grade("r", "g")
        assert service.requests == []


async def test_request_is_repeated_with_the_same_idempotency_key() -> None:
    def flaky(request: Request, number: int) -> tuple[int, Any]:
        return (503, {}) if number < 2 else (200, {"score": 1})

    with serve(flaky) as service:
        score = await make_grader("remote", url=service.url, first_wait_s=0.01).grade("r", "g")
        again = await make_grader("remote", url=service.url, first_wait_s=0.01).grade("r", "g")
        other = await make_grader("remote", url=service.url).grade("r2", "g")
    keys = [request.headers["idempotency-key"] for request in service.requests]
    assert (score.value, again.value, other.value) == (1.0, 1.0, 1.0)
    assert len(set(keys[:4])) == 1 and keys[4] != keys[0]


@pytest.mark.parametrize(
    ("status", "body", "kind", "requests"),
    [
        (500, {}, "remote", 2),
        (401, {"error": "who are you"}, "remote", 1),
        (302, {}, "remote", 1),
        (200, b"<html>", "remote", 1),
        (200, {"value": 1}, "invalid", 1),
        (200, {"score": "high"}, "invalid", 1),
        (200, b'{"score": NaN}', "invalid", 1),
        (200, {"failure": {"kind": "deadline", "message": "slow"}}, "deadline", 1),
    ],
)
async def test_answer_that_is_no_verdict_is_a_failure(
    status: int, body: Any, kind: str, requests: int
) -> None:
    with serve(lambda request, number: (status, body)) as service:
        score = await make_grader("remote", url=service.url, attempts=2, first_wait_s=0.0).grade("r", "g")
    assert score.failure is not None and score.failure.kind == kind
    assert len(service.requests) == requests


async def test_service_that_is_not_there_is_a_failure() -> None:
    with serve(equal) as service:
        pass
    score = await make_grader("remote", url=service.url, attempts=2, first_wait_s=0.0).grade("r", "g")
    assert score.failure is not None and "after 2 attempts" in score.failure.message


async def test_service_that_hangs_costs_its_own_sample() -> None:
    released = threading.Event()

    def hang(request: Request, number: int) -> tuple[int, Any]:
        if request.body["response"] == "slow":
            released.wait(50)
        return equal(request, number)

    with serve(hang) as service:
        short = make_grader("remote", url=service.url, timeout_s=0.3)
        slow, quick = await asyncio.gather(
            short.grade("slow", "g"), make_grader("remote", url=service.url).grade("g", "g")
        )
        released.set()
    assert slow.failure is not None and slow.failure.kind == "deadline"
    assert quick.value == 1.0


async def test_submitted_job_is_polled_until_it_is_done() -> None:
    def jobs(request: Request, number: int) -> tuple[int, Any]:
        if request.method == "POST":
            return 202, {"id": "job/1", "status": "queued"}
        return 200, {"status": "running"} if number < 3 else {"status": "Done", "result": {"score": 0.75}}

    with serve(jobs) as service:
        score = await make_grader("remote", url=service.url, mode="poll", poll_s=0.01).grade("r", "g")
    assert score.value == 0.75
    assert {request.path for request in service.requests[1:]} == {"/job%2F1"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"status": "queued"}], "answered no 'id'"),
        ([{"id": 1}, {"status": "failed", "message": "out of memory"}], "out of memory"),
    ],
)
async def test_job_that_fails_is_a_failure(answers: list[Any], message: str) -> None:
    with serve(lambda request, number: (200, answers[number])) as service:
        score = await make_grader("remote", url=service.url, mode="poll", poll_s=0.01).grade("r", "g")
    assert score.failure is not None and message in score.failure.message


async def test_job_that_never_ends_misses_the_deadline() -> None:
    with serve(lambda request, number: (200, {"id": "1", "status": "running"})) as service:
        score = await make_grader("remote", url=service.url, mode="poll", poll_s=0.01, timeout_s=0.2).grade(
            "r", "g"
        )
    assert score.failure is not None and score.failure.kind == "deadline"


async def test_retry_after_is_obeyed_and_waits_double_up_to_the_longest() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    answers = [Reply(status=429, headers={"retry-after": "7"}, body=b"")] + [
        Reply(status=500, headers={}, body=b"")
    ] * 4
    replies = iter([*answers, Reply(status=200, headers={}, body=b"ok")])

    async def request() -> Reply:
        return next(replies)

    class Draws(random.Random):
        def random(self) -> float:
            return 0.0

    patience = Patience(attempts=6, first_s=1.0, longest_s=10.0)
    reply = await send_patiently(request, patience, "x", sleep=sleep, draws=Draws())
    assert (reply.body, waits) == (b"ok", [7.0, 2.0, 4.0, 8.0, 10.0])


async def test_reply_is_bounded_and_addresses_are_checked() -> None:
    endless = b"x" * (17 * 2**20)
    with serve(lambda request, number: (200, endless)) as service, pytest.raises(RemoteError, match="bytes"):
        await send("GET", service.url, timeout_s=30)
    for url in ("file:///etc/passwd", "ftp://x", "http://", "nothing"):
        with pytest.raises(RemoteError, match="http://"):
            await send("GET", url, timeout_s=1)


async def test_rate_limit_bounds_requests_at_a_time_and_spaces_them() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds))

    limit, running, most = RateLimit(concurrency=2, per_minute=60, sleep=sleep), 0, 0

    async def work() -> None:
        nonlocal running, most
        async with limit.turn():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(work() for _ in range(5)))
    assert most <= 2
    assert sorted(waits) == [1, 2, 3, 4]


def test_secret_with_a_line_break_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADER_KEY", "a\r\nX-Evil: 1")
    with pytest.raises(RewardError, match="GRADER_KEY") as caught:
        authorization("GRADER_KEY")
    assert "Evil" not in str(caught.value)


async def test_grader_keeps_the_promises_of_the_seam() -> None:
    with serve(equal) as service:
        results = await check_grader(
            make_grader("remote", url=service.url), GradeItem(response="a", reference="a")
        )
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"url": "grader.example"}, "must begin with http"), ({"url": "http://x", "timeout_s": 0}, "above 0")],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        make_grader("remote", **options)


async def test_cancelled_grading_ends_the_request_that_waited() -> None:
    released = threading.Event()

    def hang(request: Request, number: int) -> tuple[int, Any]:
        released.wait(50)
        return 200, {"score": 1}

    before = {thread.ident for thread in threading.enumerate()}
    with serve(hang) as service:
        score = await grade_with_deadline(make_grader("remote", url=service.url), "r", "g", deadline_s=0.2)
        assert score.failure is not None and score.failure.kind == "deadline"
        for thread in threading.enumerate():
            if thread.ident not in before and thread.name.startswith("request"):
                await asyncio.to_thread(thread.join, 30)
                assert not thread.is_alive()
        released.set()


async def test_any_grader_is_served_and_answers_remote_graders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADER_KEY", "k")
    served = make_grader("weighted", parts={"a": {"name": "number"}, "b": {"name": "length", "weight": 0}})
    with GradingService(served, key="k") as service:
        remote = make_grader("remote", url=service.url, key_env="GRADER_KEY")
        score = await remote.grade("It is 42", "42", domain="x")
        assert (score.value, score.parsed, score.parts["b"]) == (1.0, "42", 1.0)
        broken = await remote.grade("42", None)
        assert broken.failure is not None and "NoneType" in broken.failure.message
        denied = await make_grader("remote", url=service.url).grade("42", "42")
        assert denied.failure is not None and "401" in denied.failure.message
        assert (await send("GET", f"{service.url}/health", timeout_s=10)).status == 200
        many = await asyncio.gather(*(remote.grade(str(n), "3") for n in range(20)))
        assert sum(score.value for score in many) == 1.0


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"response": 1}', b'{"response": "a", "columns": [1]}', b"["]
)
def test_service_refuses_what_is_no_row(body: bytes) -> None:
    service = GradingService(make_grader("exact"))
    with service:
        status, answer = service.answer(body)
    assert status == 400 and "expected response" in str(answer["error"])


def test_service_says_where_it_cannot_listen() -> None:
    with GradingService(make_grader("exact")) as service:
        port = int(service.url.rpartition(":")[2])
        with pytest.raises(RewardError, match="cannot listen"):
            GradingService(make_grader("exact"), port=port)
