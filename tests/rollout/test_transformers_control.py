"""The transformers engine paused, asleep, streaming and under adapters: what the suite leaves open."""

import asyncio
import sys
from dataclasses import replace

import numpy as np
import pytest
from roll_rollout import (
    AdapterConfig,
    AdapterUpdate,
    EngineClosed,
    EngineError,
    EngineLibraryError,
    UnsupportedRequest,
    WeightMismatch,
    WeightUpdate,
)
from roll_rollout.transformers_engine import TransformersEngine

LORA = AdapterConfig(rank=2, alpha=8.0, target_modules=("q_proj", "down_proj"))


def adapter(adapter_maker, name: str, version: int, *, seed: int = 1, config: AdapterConfig = LORA):
    buckets, merged = adapter_maker(config, seed)
    return AdapterUpdate(name=name, version=version, config=config, buckets=buckets), merged


async def running(engine: TransformersEngine, tokens: int) -> None:
    while (await engine.load()).kv_tokens < tokens:
        await asyncio.sleep(0)


async def test_model_that_fails_while_rows_are_computed_anew_fails_them_and_the_engine_goes_on(
    tiny_model, model_maker, buckets_of, score, make_request
):
    broken = False

    def fail(*_: object, **__: object) -> None:
        if broken:
            raise MemoryError("no memory left")

    tiny_model.register_forward_pre_hook(fail, with_kwargs=True)
    engine = TransformersEngine(tiny_model)
    tasks = [asyncio.create_task(engine.generate(make_request(seed=s, max_tokens=300))) for s in range(2)]
    await running(engine, 12)
    await engine.pause("keep")
    other = model_maker(1)
    await engine.update_weights(WeightUpdate(version=1, buckets=buckets_of(other)))
    broken = True
    await engine.resume()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineError)
        assert "the model failed: MemoryError" in str(result)
    broken = False
    completion = await engine.generate(make_request())
    expected = score(other, completion.prompt_ids, completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, rtol=0)
    await engine.close()


async def test_requests_keep_their_order_where_the_adapter_changes(tiny_model, adapter_maker, make_request):
    engine = TransformersEngine(tiny_model, max_batch=4)
    await engine.load_adapter(adapter(adapter_maker, "a", 1)[0])
    ended: list[str] = []

    async def note(name: str, asked: str | None, tokens: int) -> None:
        await engine.generate(replace(make_request(id=name, max_tokens=tokens), adapter=asked))
        ended.append(name)

    plan = [("1", None, 9), ("2", "a", 2), ("3", "a", 4), ("4", None, 1)]
    await asyncio.gather(*[note(*each) for each in plan])
    assert ended == ["1", "2", "3", "4"]
    await engine.close()


async def test_adapter_of_another_rank_takes_the_place_of_the_old_one(
    tiny_model, adapter_maker, score, make_request
):
    engine = TransformersEngine(tiny_model)
    wider = AdapterConfig(rank=4, alpha=4.0, target_modules=("k_proj",), rank_stabilised=True)
    for version, config in ((1, LORA), (2, wider), (3, LORA)):
        update, merged = adapter(adapter_maker, "a", version, config=config)
        await engine.load_adapter(update)
        completion = await engine.generate(replace(make_request(max_tokens=20), adapter="a"))
        expected = score(merged, completion.prompt_ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5, rtol=0)
        assert completion.versions == ((version, 20),)
    await engine.close()


async def test_weights_reach_a_model_that_adapters_have_renamed(
    tiny_model, model_maker, adapter_maker, buckets_of, score, make_request
):
    engine, other = TransformersEngine(tiny_model), model_maker(1)
    await engine.load_adapter(adapter(adapter_maker, "a", 1)[0])
    await engine.update_weights(WeightUpdate(version=2, buckets=buckets_of(other)))
    completion = await engine.generate(make_request(max_tokens=20))
    expected = score(other, completion.prompt_ids, completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, rtol=0)
    await engine.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(LORA, target_modules=("no_such_layer",)), "no_such_layer"),
        (replace(LORA, rank=3), r"is \[2, \d+\], needed is \[3, \d+\]"),
        (replace(LORA, target_modules=("q_proj", "down_proj", "v_proj")), r"is missing \(4 are\)"),
    ],
)
async def test_adapter_that_does_not_fit_is_refused_and_leaves_nothing(
    config, said, tiny_model, adapter_maker, score, make_request
):
    engine = TransformersEngine(tiny_model)
    update, _ = adapter(adapter_maker, "a", 1)
    with pytest.raises(WeightMismatch, match=said):
        await engine.load_adapter(replace(update, config=config))
    assert await engine.adapters() == {}
    with pytest.raises(UnsupportedRequest, match="'a' is unknown, loaded are"):
        await engine.generate(replace(make_request(), adapter="a"))
    await engine.load_adapter(update)
    assert await engine.adapters() == {"a": 1}
    await engine.close()


async def test_missing_peft_is_named(tiny_model, adapter_maker, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    engine = TransformersEngine(tiny_model)
    with pytest.raises(EngineLibraryError, match=r"roll-rollout\[lora\]"):
        await engine.load_adapter(adapter(adapter_maker, "a", 1)[0])
    await engine.close()


async def test_sleep_at_level_2_gives_the_weights_memory_back(
    tiny_model, model_maker, buckets_of, make_request
):
    engine = TransformersEngine(tiny_model)
    before = await engine.generate(make_request(seed=2))
    await engine.sleep(2)
    assert sum(parameter.numel() for parameter in tiny_model.parameters()) == 0
    with pytest.raises(EngineError, match="asleep"):
        await engine.update_weights(WeightUpdate(version=1, buckets=()))
    await engine.wake()
    assert tiny_model.lm_head.weight is tiny_model.model.embed_tokens.weight
    with pytest.raises(WeightMismatch):
        await engine.update_weights(WeightUpdate(version=1, buckets=buckets_of(model_maker(1))[1:]))
    waiting = asyncio.create_task(engine.generate(make_request(seed=2)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await engine.update_weights(WeightUpdate(version=1, buckets=buckets_of(model_maker(0))))
    assert (await waiting).token_ids.tolist() == before.token_ids.tolist()
    await engine.close()


async def test_pause_and_sleep_are_independent_holds(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    await engine.pause("keep")
    await engine.sleep(1)
    waiting = asyncio.create_task(engine.generate(make_request(max_tokens=3)))
    await engine.wake()
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await engine.resume()
    assert len(await waiting) == 3
    await engine.close()


async def test_wrong_modes_and_levels_are_refused_and_hold_nothing(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    with pytest.raises(EngineError, match="mode is 'stop', allowed is one of"):
        await engine.pause("stop")
    with pytest.raises(EngineError, match=r"level is 3, allowed is one of \(1, 2\)"):
        await engine.sleep(3)
    assert len(await engine.generate(make_request())) == 8
    await engine.close()
    for call in (engine.pause("keep"), engine.sleep(1), engine.wake(), engine.check_health()):
        with pytest.raises(EngineClosed):
            await call


async def test_closing_a_paused_engine_ends_who_waits(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    frozen = asyncio.create_task(engine.generate(make_request(max_tokens=300)))
    await running(engine, 5)
    await engine.pause("keep")
    held = asyncio.create_task(engine.generate(make_request()))
    await asyncio.sleep(0)
    await engine.close()
    for result in await asyncio.gather(frozen, held, return_exceptions=True):
        assert isinstance(result, EngineClosed)


async def test_second_stream_under_an_id_is_refused_and_the_first_goes_on(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    request = make_request(id="s", max_tokens=60)
    first = engine.stream(request)
    chunk = await anext(first)
    with pytest.raises(EngineError, match="'s': its id is in flight"):
        await anext(engine.stream(request))
    tokens = chunk.token_ids.tolist() + [t async for each in first for t in each.token_ids.tolist()]
    assert len(tokens) == 60
    await engine.close()


async def test_stop_string_across_the_seam_of_a_partial_completion_still_cuts(
    tiny_model, letter_tokenizer, make_request
):
    engine = TransformersEngine(tiny_model, tokenizer=letter_tokenizer)
    free = await engine.generate(make_request(seed=4, max_tokens=20))
    text = letter_tokenizer.decode(free.token_ids.tolist())
    stop = text[7:10]
    assert text.index(stop) == 7
    partial = replace(
        free,
        token_ids=free.token_ids[:8],
        logprobs=free.logprobs[:8],
        versions=((0, 8),),
        finish_reason="abort",
    )
    request = make_request(seed=4, max_tokens=20, stop=(stop,)).resumed(partial)
    completion = await engine.generate(request)
    assert completion.token_ids.tolist() == free.token_ids.tolist()[:7]
    chunks = [chunk async for chunk in engine.stream(request)]
    streamed = np.concatenate([chunk.token_ids for chunk in chunks])
    assert streamed.tolist() == completion.token_ids.tolist()
    await engine.close()
