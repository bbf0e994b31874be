"""Judges: endpoints and functions, verdicts that can and cannot be read, panels, swapped places, steps."""

import asyncio
import math
from typing import Any

import pytest
from grading_service import Request, serve
from roll_rewards import RewardError, make_grader
from roll_rewards.graders.process import split_steps
from roll_rewards.judging.endpoint import ChatEndpoint, Messages, Written, yes_probability
from roll_rewards.judging.templates import filled
from roll_rewards.judging.verdicts import read_verdict

READ = [
    ("yes_no", "They agree.\nVerdict: YES", 1.0),
    ("yes_no", "**Verdict:** no", 0.0),
    ("yes_no", "[[yes]]", 1.0),
    ("yes_no", "Verdict: YES. On reflection, verdict: NO", 0.0),
    ("yes_no", "Yes.", 1.0),
    ("yes_no", '{"verdict": "no", "reason": "13, not 12"}', 0.0),
    ("yes_no", '```json\n{"correct": true}\n```', 1.0),
    ("yes_no", "<think>Verdict: YES</think>Verdict: NO", 0.0),
    ("yes_no", "<think>Verdict: YES", None),
    ("yes_no", "Verdict: incorrect", 0.0),
    ("yes_no", "I know nothing about yesterday", None),
    ("yes_no", "", None),
    ("yes_no", "Verdict: YESTERDAY", None),
    ("score", "Score: 10", 1.0),
    ("score", "Rating: **5.5**/10", 0.5),
    ("score", "[[1]]", 0.0),
    ("score", "Score: 11", None),
    ("score", "7", 2 / 3),
    ("score", '{"score": 10}', 1.0),
    ("score", "It has 3 faults", None),
    ("preference", "Verdict: A", 1.0),
    ("preference", "[[B]]", 0.0),
    ("preference", "Verdict: TIE", 0.5),
    ("preference", "winner: Response B", 0.0),
    ("preference", "both", None),
    ("preference", "A better verdict: absent", None),
]


@pytest.mark.parametrize(("kind", "text", "value"), READ)
def test_verdict_is_the_last_one_said(kind: Any, text: str, value: float | None) -> None:
    verdict = read_verdict(text, kind)
    assert verdict.value == (None if value is None else pytest.approx(value))
    assert value is not None or verdict.reason


def test_places_are_filled_once_and_marks_cannot_be_closed() -> None:
    text = filled(
        "<response>{response}</response> {reference}", {"response": "{reference}</response>!", "reference": 4}
    )
    assert text == "<response>{reference}[/response]!</response> 4"
    with pytest.raises(RewardError, match="needs answer"):
        filled("{answer}", {"response": "x"})


def says(*texts: str) -> Any:
    """A judge that says one text after the other, and remembers what it was asked."""
    asked: list[str] = []

    async def generate(messages: Messages) -> str:
        asked.append(messages[-1]["content"])
        return texts[min(len(asked), len(texts)) - 1]

    generate.asked = asked  # type: ignore[attr-defined]  # for the test to look at
    return generate


async def test_judge_sees_question_reference_and_response_and_its_reason_is_kept() -> None:
    judge = says("Both are 42.\nVerdict: YES")
    score = await make_grader("judge", judges=[judge]).grade("<think>hm</think>It is 42", "42", prompt="6*7?")
    assert (score.value, score.parsed) == (1.0, "Both are 42.")
    assert "6*7?" in judge.asked[0] and "It is 42" in judge.asked[0] and "hm" not in judge.asked[0]


async def test_unreadable_verdict_is_asked_for_again_and_then_a_failure() -> None:
    score = await make_grader("judge", judges=[says("hmm", "Verdict: YES")]).grade("r", "g")
    assert (score.value, score.parts["tries"]) == (1.0, 2.0)
    score = await make_grader("judge", judges=[says("hmm")], tries=2).grade("r", "g")
    assert score.failure is not None and score.failure.kind == "judge" and "hmm" in score.failure.message


async def test_judge_that_raises_is_a_failure_and_not_a_zero() -> None:
    async def broken(messages: Messages) -> str:
        raise ConnectionError("gone")

    score = await make_grader("judge", judges=[broken]).grade("r", "g")
    assert score.failure is not None and "gone" in score.failure.message


@pytest.mark.parametrize(
    ("combine", "value"), [("mean", 2 / 3), ("median", 1.0), ("majority", 1.0), ("min", 0.0), ("max", 1.0)]
)
async def test_panel_is_combined(combine: str, value: float) -> None:
    panel = [says("Verdict: YES"), says("Verdict: NO"), says("Verdict: YES")]
    score = await make_grader("judge", judges=panel, combine=combine).grade("r", "g")
    assert score.value == pytest.approx(value)
    assert (score.parts["judge_2"], score.parts["agreement"]) == (0.0, 0.0)


async def test_quorum_lets_a_silent_judge_be_missing() -> None:
    panel = [says("Verdict: YES"), says("?")]
    assert (await make_grader("judge", judges=panel, tries=1, quorum=1).grade("r", "g")).value == 1.0
    assert (await make_grader("judge", judges=panel, tries=1).grade("r", "g")).failure is not None


async def test_swapped_places_cancel_a_liking_for_the_first() -> None:
    async def first(messages: Messages) -> str:
        return "Verdict: A"

    async def honest(messages: Messages) -> str:
        text = messages[-1]["content"]
        return f"Verdict: {'A' if text.index('good one') < text.index('bad one') else 'B'}"

    options = {"template": "pairwise", "kind": "preference"}
    biased = await make_grader("judge", judges=[first], **options).grade("good one", "bad one")
    assert (biased.value, biased.parts["flips"]) == (0.5, 1.0)
    fair = await make_grader("judge", judges=[honest], **options).grade("good one", "x", baseline="bad one")
    assert (fair.value, fair.parts["flips"]) == (1.0, 0.0)
    once = await make_grader("judge", judges=[first], swap=False, **options).grade("good one", "bad one")
    assert once.value == 1.0


async def test_empty_response_is_not_worth_a_question() -> None:
    judge = says("Verdict: YES")
    score = await make_grader("judge", judges=[judge]).grade("<think>only", "g")
    assert (score.value, judge.asked) == (0.0, [])


def chat(text: str, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"choices": [{"message": {"role": "assistant", "content": text}, **more}], "usage": usage}


async def test_endpoint_is_asked_in_openai_form_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "k")

    def answer(request: Request, number: int) -> tuple[int, Any]:
        return (429, {}, {"Retry-After": "0"}) if number == 0 else (200, chat("Verdict: YES"))  # type: ignore[return-value]

    with serve(answer) as service:
        judge = {"url": f"{service.url}/v1", "model": "m", "key_env": "JUDGE_KEY", "prompt_price": 1.0,
                 "completion_price": 10.0, "extra": {"seed": 3}}  # fmt: skip
        score = await make_grader("judge", judges=[judge], system="Be strict.").grade("r", "g")
    request = service.requests[-1]
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer k")
    assert (request.body["model"], request.body["temperature"], request.body["seed"]) == ("m", 0.0, 3)
    assert [message["role"] for message in request.body["messages"]] == ["system", "user"]
    assert score.parts["prompt_tokens"] == 100 and score.parts["completion_tokens"] == 10
    assert score.parts["cost"] == pytest.approx(200 / 1e6) and score.parts["latency"] > 0


async def test_endpoint_that_refuses_or_talks_nonsense_is_a_failure() -> None:
    for status, body in ((401, {}), (200, {"choices": []}), (200, b"hm")):
        with serve(lambda request, number, status=status, body=body: (status, body)) as service:
            judge = {"url": service.url, "model": "m", "attempts": 1}
            score = await make_grader("judge", judges=[judge]).grade("r", "g")
        assert score.failure is not None and score.failure.kind == "judge"


async def test_generative_reward_model_gives_the_probability_of_yes() -> None:
    top = [
        {"token": " Yes", "logprob": math.log(0.6)},
        {"token": "yes", "logprob": math.log(0.1)},
        {"token": "No", "logprob": math.log(0.2)},
        {"token": "Maybe", "logprob": math.log(0.1)},
    ]
    body = chat("Yes", logprobs={"content": [{"token": " Yes", "top_logprobs": top}]})
    with serve(lambda request, number: (200, body)) as service:
        judge = {"url": service.url, "model": "m"}
        grader = make_grader("judge", judges=[judge], template="yes_no", kind="yes_probability")
        score = await grader.grade("r", "g")
    assert score.value == pytest.approx(0.7 / 0.9)
    assert service.requests[0].body["logprobs"] is True
    assert yes_probability({"Maybe": 0.0}) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"judges": []}, "needs a judge"),
        ({"judges": [{"url": "x", "model": "m"}]}, "must begin with http"),
        ({"judges": [{"url": "http://x", "modell": "m"}]}, "did you mean 'model'"),
        ({"judges": [{"url": "http://x"}]}, "cannot be made"),
        ({"judges": [{"url": "http://x", "model": "m"}], "template": "corectness"}, "templates are"),
        ({"judges": [{"url": "http://x", "model": "m"}], "kind": "preference"}, "belong together"),
        ({"judges": [{"url": "http://x", "model": "m"}], "quorum": 2}, "quorum"),
        ({"judges": 3}, "a list of a function or a mapping"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        make_grader("judge", **options)


def test_endpoint_survives_the_way_to_a_worker() -> None:
    import pickle

    endpoint = ChatEndpoint(url="http://x", model="m")
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


STEPS = "Step 1: add.\n\nStep 2: double it.\nStep 3: done. \\boxed{4}"


def test_steps_are_split_and_joined_at_the_limit() -> None:
    assert split_steps(STEPS) == ["Step 1: add.", "Step 2: double it.", "Step 3: done. \\boxed{4}"]
    assert split_steps(STEPS, max_steps=2)[1] == "Step 2: double it.\n\nStep 3: done. \\boxed{4}"
    assert split_steps(" \n\n ") == []


async def by_step(messages: Messages) -> Written:
    checked = messages[-1]["content"].partition("<response>")[2]
    await asyncio.sleep(0.01 if "Step 1" in checked else 0)
    return Written(text=f"Verdict: {'NO' if 'Step 2' in checked else 'YES'}")


@pytest.mark.parametrize(
    ("aggregate", "value"), [("min", 0.0), ("mean", 2 / 3), ("product", 0.0), ("last", 1.0)]
)
async def test_process_reward_names_the_first_wrong_step(aggregate: str, value: float) -> None:
    score = await make_grader("process", judge=by_step, aggregate=aggregate).grade(
        STEPS, "4", prompt="1+1, doubled?"
    )
    assert score.value == pytest.approx(value)
    assert [score.parts[f"step_{n}"] for n in (1, 2, 3)] == [1.0, 0.0, 1.0]
    assert (score.parts["first_error"], score.parts["steps"]) == (2.0, 3.0)


async def test_process_reward_takes_any_grader_over_prefixes() -> None:
    grader = make_grader("process", scorer={"name": "length", "options": {"shortest": 5}}, aggregate="mean")
    score = await grader.grade("one two\n\nthree four five\n\nsix", None)
    assert [score.parts[f"step_{n}"] for n in (1, 2, 3)] == [0.0, 1.0, 1.0]


async def test_step_without_a_verdict_leaves_the_whole_without_one() -> None:
    score = await make_grader("process", judge=says("?"), tries=1).grade(STEPS, "4")
    assert score.failure is not None and score.failure.message.startswith("step 1")


def test_process_needs_one_kind_of_judge() -> None:
    with pytest.raises(RewardError, match="exactly one"):
        make_grader("process")
