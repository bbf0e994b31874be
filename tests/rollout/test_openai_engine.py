"""The OpenAI engine before servers that are good, busy, broken, dead, and stingy with ids and log-probs."""

import asyncio
import math
import pickle

import numpy as np
import pytest
from roll_rollout import (
    EngineClosed,
    EngineError,
    EngineUnavailable,
    PromptTooLong,
    SamplingError,
    UnsupportedRequest,
    WeightUpdate,
)
from roll_rollout.conformance import Policy, check_engine
from roll_rollout.http_endpoint import Refused
from roll_rollout.openai_engine import OpenAIEngine, RetryPolicy
from roll_rollout.transformers_engine import TransformersEngine

QUICK = RetryPolicy(attempts=3, first_wait_s=0.01, longest_wait_s=0.05, idle_s=5.0, deadline_s=20.0)


def choice(token_ids, reason=None, **more):
    logprobs = {
        "tokens": [f"token_id:{each}" for each in token_ids],
        "token_logprobs": [-0.5] * len(token_ids),
    }
    return {
        "choices": [
            {"index": 0, "text": "x" * len(token_ids), "finish_reason": reason, "logprobs": logprobs} | more
        ]
    }


async def answer(reply, *events) -> None:
    await reply.start_events()
    for event in events:
        await reply.event(event)
    await reply.event("[DONE]")


def engine_at(server, **options) -> OpenAIEngine:
    return OpenAIEngine(server.address + "/v1", model="m", **({"retry": QUICK} | options))


class ServedModel:
    """As much of vLLM's server as the engine needs, on a transformers engine."""

    def __init__(self, engine: TransformersEngine, make_request) -> None:
        self._engine = engine
        self._make_request = make_request

    async def __call__(self, path, body, reply) -> None:
        if path == "/v1/models":
            return await reply.json({"data": []})
        context = 300
        if len(body["prompt"]) >= context:
            message = f"This model's maximum context length is {context} tokens."
            return await reply.json({"error": {"message": message}}, status=400)
        assert body["ignore_eos"]
        assert body["stream"]
        request = self._make_request(
            body["prompt"],
            seed=body["seed"],
            max_tokens=min(body["max_tokens"], context - len(body["prompt"])),
            temperature=body["temperature"],
            stop_token_ids=tuple(body.get("stop_token_ids", ())),
            stop=tuple(body.get("stop", ())),
        )
        await reply.start_events()
        stream = self._engine.stream(request)
        try:
            async for chunk in stream:
                if reply.client_left:
                    return None
                ids = chunk.token_ids.tolist()
                reason = None if chunk.completion is None else chunk.completion.finish_reason
                logprobs = {"tokens": ["?"] * len(ids), "token_logprobs": chunk.logprobs.tolist()}
                entry = {
                    "index": 0,
                    "text": "?",
                    "token_ids": ids,
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }
                await reply.event({"choices": [entry]})
        finally:
            await stream.aclose()
        await reply.event("[DONE]")


async def test_openai_engine_conforms_before_a_server_that_gives_ids_and_logprobs(
    fake_server, model_maker, score, buckets_of, make_request, letter_tokenizer
):
    model = model_maker()
    policy = Policy(buckets=buckets_of(model), score=lambda *args: score(model, *args))
    behind = TransformersEngine(model_maker(), max_context=300, tokenizer=letter_tokenizer)
    async with fake_server(ServedModel(behind, make_request)) as server:

        async def make_engine() -> OpenAIEngine:
            return engine_at(server, logprobs_of="sampled", decode=letter_tokenizer.decode, max_context=300)

        results = await check_engine(
            make_engine,
            policies=(policy, policy),
            prompts=[np.array([3, 4, 5]), np.array([9, 8]), np.array([4, 4, 7, 1, 2])],
            max_context=300,
            tolerance=2e-5,
            deadline_s=30,
            decode=letter_tokenizer.decode,
        )
    await behind.close()
    assert {each.name: each.detail for each in results if not each.passed} == {}
    names = {each.name for each in results}
    assert {"streams_are_the_completion", "partial_completions_go_on", "stop_strings_cut"} <= names
    assert "updates_reach_the_engine" not in names


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_busy_server_is_asked_again(status, fake_server, make_request):
    async def handler(path, body, reply):
        if len(server.requests) < 3:
            return await reply.json({"error": "busy"}, status=status)
        await answer(reply, choice([7, 8]), choice([2], "stop"))

    async with fake_server(handler) as server:
        engine = engine_at(server, api_key="secret", version=5)
        completion = await engine.generate(make_request([1, 2], max_tokens=9))
        await engine.close()
    assert completion.token_ids.tolist() == [7, 8, 2]
    assert completion.logprobs.tolist() == [-0.5] * 3
    assert (completion.finish_reason, completion.versions, completion.exact) == ("stop", ((5, 3),), True)
    assert engine.retries == 2
    assert server.bodies("/v1/completions")[0]["prompt"] == [1, 2]
    assert {each["authorization"] for each in server.headers} == {"bearer secret"}


async def test_server_says_how_long_to_wait_and_back_off_doubles(fake_server, make_request):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    async def handler(path, body, reply):
        headers = {"retry_after": "7"} if len(server.requests) == 3 else {}
        await reply.json({}, status=429, **headers)

    async with fake_server(handler) as server:
        retry = RetryPolicy(attempts=5, first_wait_s=1.0, longest_wait_s=6.0, idle_s=5.0)
        engine = engine_at(server, retry=retry, sleep=sleep)
        with pytest.raises(EngineUnavailable, match=r"5 attempts failed, the last with status 429.*"):
            await engine.generate(make_request())
        await engine.close()
    assert len(waits) == 4
    assert 0.5 <= waits[0] <= 1.0
    assert 1.0 <= waits[1] <= 2.0
    assert waits[2] == 6.0
    assert 4.0 <= waits[3] <= 6.0


async def test_stream_that_breaks_off_is_drawn_again_and_never_mixed(fake_server, make_request):
    async def handler(path, body, reply):
        await reply.start_events()
        await reply.event(choice([5, 6]))
        if len(server.requests) > 1:
            await reply.event(choice([9], "length"))
            await reply.event("[DONE]")

    async with fake_server(handler) as server:
        engine = engine_at(server)
        completion = await engine.generate(make_request(max_tokens=3))
        load = await engine.load()
        await engine.close()
    assert completion.token_ids.tolist() == [5, 6, 9]
    assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)


async def test_tokens_that_were_streamed_are_not_taken_back(fake_server, make_request):
    async def handler(path, body, reply):
        await reply.start_events()
        await reply.event(choice([len(server.requests)]))

    async with fake_server(handler) as server:
        engine = engine_at(server)
        with pytest.raises(EngineError, match="drew other tokens than before"):
            async for _ in engine.stream(make_request()):
                pass
        await engine.close()


async def test_dead_endpoint_is_named(make_request):
    engine = OpenAIEngine("http://127.0.0.1:9/v1", model="m", retry=QUICK)
    with pytest.raises(
        EngineUnavailable, match=r"'r1': endpoint http://127.0.0.1:9/v1/completions: 3 attempts"
    ):
        await engine.generate(make_request(id="r1"))
    with pytest.raises(EngineUnavailable, match=r"127.0.0.1:9/v1/models"):
        await engine.check_health()
    await engine.close()


async def test_server_that_never_answers_ends_at_the_deadline(fake_server, make_request):
    async def handler(path, body, reply):
        await asyncio.sleep(30)

    async with fake_server(handler) as server:
        retry = RetryPolicy(attempts=3, idle_s=20.0, deadline_s=0.3)
        engine = engine_at(server, retry=retry)
        with pytest.raises(EngineUnavailable, match=r"not done within 0.3 s"):
            await engine.generate(make_request())
        await engine.close()


@pytest.mark.parametrize(
    ("status", "message", "error", "said"),
    [
        (400, "This model's maximum context length is 8 tokens", PromptTooLong, "a prompt of 3 tokens"),
        (400, "temperature must be finite", EngineError, "temperature must be finite"),
        (401, "no such key", EngineError, "credentials"),
        (404, "model m does not exist", EngineError, "does not exist"),
    ],
)
async def test_refusal_is_not_retried_and_says_why(status, message, error, said, fake_server, make_request):
    async def handler(path, body, reply):
        await reply.json({"error": {"message": message}}, status=status)

    async with fake_server(handler) as server:
        engine = engine_at(server)
        with pytest.raises(error, match=said):
            await engine.generate(make_request())
        await engine.close()
    assert len(server.requests) == 1
    copy = pickle.loads(pickle.dumps(Refused("refused", status, message)))
    assert (str(copy), copy.status, copy.text) == ("refused", status, message)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"choices": [{"text": "hi", "finish_reason": "stop"}]}, "gives no token ids, which training needs"),
        (
            {"choices": [{"text": "hi", "token_ids": [5], "finish_reason": "stop"}]},
            "gives no log-probs, which training needs",
        ),
    ],
)
async def test_server_without_ids_or_logprobs_is_refused_for_training(event, said, fake_server, make_request):
    async def handler(path, body, reply):
        await answer(reply, event)

    async with fake_server(handler) as server:
        engine = engine_at(server)
        with pytest.raises(UnsupportedRequest, match=said):
            await engine.generate(make_request())
        await engine.close()
    assert len(server.requests) == 1


async def test_text_alone_will_do_for_evaluation_and_says_that_it_is_not_exact(fake_server, make_request):
    async def handler(path, body, reply):
        await answer(
            reply, {"choices": [{"text": "ab"}]}, {"choices": [{"text": "c", "finish_reason": "stop"}]}
        )

    async with fake_server(handler) as server:
        engine = engine_at(
            server,
            for_training=False,
            logprobs_of="none",
            prompts_as_text=True,
            encode=lambda text: [ord(each) for each in text],
            decode=lambda ids: "".join(chr(each) for each in ids),
        )
        completion = await engine.generate(make_request([72, 105]))
        assert server.bodies("/v1/completions")[0]["prompt"] == "Hi"
        assert "logprobs" not in server.bodies("/v1/completions")[0]
        await engine.close()
    assert completion.token_ids.tolist() == [97, 98, 99]
    assert not completion.exact
    assert all(math.isnan(each) for each in completion.logprobs)


@pytest.mark.parametrize("sampling", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}])
async def test_raw_logprobs_of_another_distribution_are_refused(sampling, fake_server, make_request):
    async def handler(path, body, reply):
        await answer(reply, choice([4], "length"))

    async with fake_server(handler) as server:
        engine = engine_at(server)
        with pytest.raises(SamplingError, match="log-probs are raw"):
            await engine.generate(make_request(**sampling))
        assert server.requests == []
        evaluation = engine_at(server, for_training=False)
        completion = await evaluation.generate(make_request(**sampling))
        assert np.isnan(completion.logprobs).all()
        assert (await engine.generate(make_request())).logprobs.tolist() == [-0.5]
        await engine.close()
        await evaluation.close()


async def test_abort_keeps_what_came_and_closes_the_connection(fake_server, make_request):
    left = asyncio.Event()

    async def handler(path, body, reply):
        await reply.start_events()
        await reply.event(choice([5, 6]))
        while not reply.client_left:
            await asyncio.sleep(0.005)
        left.set()

    async with fake_server(handler) as server:
        engine = engine_at(server, version=3)
        task = asyncio.create_task(engine.generate(make_request(id="a")))
        while (await engine.load()).kv_tokens < 5:
            await asyncio.sleep(0.005)
        await engine.abort(["a"])
        completion = await task
        await asyncio.wait_for(left.wait(), 5)
        assert completion.token_ids.tolist() == [5, 6]
        assert (completion.finish_reason, completion.versions) == ("abort", ((3, 2),))
        await engine.close()
        with pytest.raises(EngineClosed):
            await engine.generate(make_request())


async def test_weights_of_an_endpoint_cannot_be_replaced(fake_server):
    async with fake_server(None) as server:
        engine = engine_at(server)
        with pytest.raises(UnsupportedRequest, match=r"version 4 for http://127.0.0.1"):
            await engine.update_weights(WeightUpdate(version=4, buckets=()))
        await engine.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"logprobs_of": "top"}, "allowed is one of"),
        ({"logprobs_of": "none"}, "for_training=False"),
        ({"prompts_as_text": True}, "needs decode"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, said):
    with pytest.raises(EngineError, match=said):
        OpenAIEngine("http://localhost/v1", model="m", **options)


def test_address_without_scheme_is_refused():
    with pytest.raises(EngineError, match="address is 'localhost:8000'"):
        OpenAIEngine("localhost:8000", model="m")
