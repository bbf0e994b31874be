"""The transformers engine when the model fails, weights change or are wrong, and callers go away."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from roll_rollout import EngineClosed, EngineError, WeightMismatch, WeightUpdate
from roll_rollout.transformers_engine import TransformersEngine


class Fault:
    """Lets the model fail in forward passes of a given number of query tokens."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.queries: int | None = None
        model.register_forward_pre_hook(self._check, with_kwargs=True)

    def _check(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs["input_ids"].shape[1] == self.queries:
            raise MemoryError("no memory left")


@pytest.mark.parametrize(("queries", "where"), [(3, "prefill"), (1, "decode")])
async def test_failing_model_fails_its_requests_and_the_engine_goes_on(
    queries, where, tiny_model, make_request
):
    fault = Fault(tiny_model)
    engine = TransformersEngine(tiny_model)
    before = await engine.generate(make_request(seed=7))
    fault.queries = queries
    results = await asyncio.gather(
        *[engine.generate(make_request(id=f"q{seed}", seed=seed)) for seed in range(3)],
        return_exceptions=True,
    )
    for seed, error in enumerate(results):
        assert type(error) is EngineError
        assert f"request 'q{seed}': the model failed: MemoryError('no memory left')" in str(error)
        assert isinstance(error.__cause__, MemoryError)
    fault.queries = None
    after = await engine.generate(make_request(seed=7))
    assert after.logprobs.tolist() == before.logprobs.tolist()
    load = await engine.load()
    assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)


async def test_failing_prefill_leaves_running_requests_alone(tiny_model, score, make_request):
    fault = Fault(tiny_model)
    fault.queries = 5
    engine = TransformersEngine(tiny_model)
    running = asyncio.create_task(engine.generate(make_request([1, 2, 3], max_tokens=40)))
    while (await engine.load()).kv_tokens < 6:
        await asyncio.sleep(0)
    with pytest.raises(EngineError, match="no memory left"):
        await engine.generate(make_request([1, 2, 3, 4, 5]))
    completion = await running
    expected = score(tiny_model, completion.prompt_ids, completion.token_ids, 1.0)
    assert len(completion) == 40
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, rtol=0)


async def test_logits_that_are_not_finite_fail_the_request_until_good_weights_arrive(
    tiny_model, model_maker, score, buckets_of, make_request
):
    bad = model_maker()
    with torch.no_grad():
        bad.model.norm.weight[3] = float("nan")
    engine = TransformersEngine(bad)
    with pytest.raises(EngineError, match="request 'q': logits are not finite after 0 tokens"):
        await engine.generate(make_request(id="q"))
    await engine.update_weights(WeightUpdate(version=1, buckets=buckets_of(tiny_model)))
    completion = await engine.generate(make_request([1] * 9))
    expected = score(tiny_model, completion.prompt_ids, completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, rtol=0)


async def test_executor_that_was_shut_down_fails_requests_instead_of_hanging(tiny_model, make_request):
    executor = ThreadPoolExecutor(1)
    engine = TransformersEngine(tiny_model, executor=executor)
    executor.shutdown()
    with pytest.raises(EngineError, match="shutdown"):
        await engine.generate(make_request())


async def test_failing_tokenizer_fails_the_request_that_needs_it(tiny_model, letter_tokenizer, make_request):
    class Broken:
        def decode(self, *args: object, **options: object) -> str:
            raise ValueError("cannot decode")

    engine = TransformersEngine(tiny_model, tokenizer=Broken())
    with pytest.raises(EngineError, match="cannot decode"):
        await engine.generate(make_request(stop=("x",)))
    assert len(await engine.generate(make_request())) == 8


async def test_running_requests_take_up_new_weights_and_prompts_are_computed_anew(
    tiny_model, model_maker, score, buckets_of, make_request
):
    engine = TransformersEngine(tiny_model, max_batch=2)
    other = model_maker(1)
    requests = [make_request([4, 5], seed=seed, max_tokens=60) for seed in range(3)]
    tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
    while engine.stats().decode_steps < 5:
        await asyncio.sleep(0)
    receipt = await engine.update_weights(WeightUpdate(version=1, buckets=buckets_of(other)))
    assert receipt.version == 1
    first, second, waiting = await asyncio.gather(*tasks)
    for completion in (first, second):
        (old, before), (new, after) = completion.versions
        assert (old, new, before + after) == (0, 1, 60)
        assert before >= 5
        expected = score(model_maker(0), completion.prompt_ids, completion.token_ids[:before], 1.0)
        np.testing.assert_allclose(completion.logprobs[:before], expected, atol=1e-5, rtol=0)
        # What was drawn before is read by the new weights, as if they had read it all along.
        expected = score(other, completion.prompt_ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs[before:], expected[before:], atol=1e-5, rtol=0)
    assert waiting.versions == ((1, 60),)
    expected = score(other, waiting.prompt_ids, waiting.token_ids, 1.0)
    np.testing.assert_allclose(waiting.logprobs, expected, atol=1e-5, rtol=0)
    stats = engine.stats()
    assert stats.prefill_tokens == 4
    # Two prompts of 2, and all their tokens but the newest.
    drawn_before = sum(each.versions[0][1] for each in (first, second))
    assert stats.refreshed_tokens == 2 * 2 + drawn_before - 2


async def test_weights_arrive_bit_by_bit_from_payloads_that_cannot_be_written(
    tiny_model, model_maker, buckets_of
):
    engine, other = TransformersEngine(tiny_model), model_maker(1)
    buckets = []
    for bucket in buckets_of(other):
        payload = np.frombuffer(bucket.payload.tobytes(), dtype=np.uint8)
        assert not payload.flags.writeable
        buckets.append(replace(bucket, payload=payload))
    await engine.update_weights(WeightUpdate(version=1, buckets=tuple(buckets)))
    for name, tensor in tiny_model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert tiny_model.lm_head.weight is tiny_model.model.embed_tokens.weight


async def test_tied_weights_may_come_under_either_name(tiny_model, model_maker, buckets_of):
    engine, other = TransformersEngine(tiny_model), model_maker(1)
    swap = {"model.embed_tokens.weight": "lm_head.weight", "lm_head.weight": "model.embed_tokens.weight"}
    buckets = [
        replace(bucket, names=tuple(swap.get(name, name) for name in bucket.names))
        for bucket in buckets_of(other)
    ]
    await engine.update_weights(WeightUpdate(version=1, buckets=tuple(buckets)))
    assert torch.equal(tiny_model.model.embed_tokens.weight, other.model.embed_tokens.weight)


async def test_update_of_another_dtype_is_refused_before_anything_is_written(
    tiny_model, model_maker, buckets_of
):
    before = {name: tensor.clone() for name, tensor in tiny_model.state_dict().items()}
    engine = TransformersEngine(tiny_model)
    one_a_tensor = [
        buckets_of(model_maker(1, dtype=each), max_bytes=1) for each in (torch.float32, torch.bfloat16)
    ]
    buckets = one_a_tensor[0][:-1] + one_a_tensor[1][-1:]
    with pytest.raises(WeightMismatch, match="is bfloat16"):
        await engine.update_weights(WeightUpdate(version=1, buckets=buckets))
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny_model.state_dict().items())


async def test_cancelled_caller_frees_the_row_for_the_next(tiny_model, make_request):
    engine = TransformersEngine(tiny_model, max_batch=1)
    hog = asyncio.create_task(engine.generate(make_request(id="hog", max_tokens=400)))
    while (await engine.load()).running == 0:
        await asyncio.sleep(0)
    hog.cancel()
    follower = await engine.generate(make_request(id="next", max_tokens=3))
    assert hog.cancelled()
    assert len(follower) == 3
    assert engine.stats().sampled_tokens < 300


async def test_closing_while_the_model_runs_ends_all_and_refuses_the_rest(tiny_model, make_request):
    engine = TransformersEngine(tiny_model, max_batch=2)
    tasks = [asyncio.create_task(engine.generate(make_request(seed=s, max_tokens=300))) for s in range(4)]
    while (await engine.load()).running < 2:
        await asyncio.sleep(0)
    await engine.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in results] == [EngineClosed] * 4
    with pytest.raises(EngineClosed):
        await engine.generate(make_request())
    with pytest.raises(EngineClosed):
        await engine.update_weights(WeightUpdate(version=1, buckets=()))
    load = await engine.load()
    assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)


async def test_engine_serves_one_event_loop_after_another(model_maker, make_request):
    engine = TransformersEngine(model_maker())

    def serve() -> list[int]:
        return asyncio.run(engine.generate(make_request(seed=1))).token_ids.tolist()

    first = await asyncio.to_thread(serve)
    assert await asyncio.to_thread(serve) == first


async def test_event_loop_that_ends_with_requests_in_flight_leaves_a_usable_engine(model_maker, make_request):
    engine = TransformersEngine(model_maker(), max_batch=2)

    async def leave() -> None:
        for seed in range(4):
            task = asyncio.create_task(engine.generate(make_request(id=f"q{seed}", max_tokens=400)))
            task.add_done_callback(lambda done: done.cancelled())
        while (await engine.load()).kv_tokens < 20:
            await asyncio.sleep(0)

    async def serve() -> int:
        completion = await engine.generate(make_request(id="q0", max_tokens=12))
        load = await engine.load()
        assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)
        return len(completion)

    for _ in range(2):
        await asyncio.to_thread(asyncio.run, leave())
        assert await asyncio.to_thread(asyncio.run, serve()) == 12
    await engine.close()
