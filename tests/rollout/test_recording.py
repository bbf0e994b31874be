"""Completions that were recorded come back bit for bit, without the engine that drew them."""

import asyncio

import numpy as np
import pytest
from roll_rollout import (
    EngineClosed,
    EngineError,
    RecordingEngine,
    ReplayEngine,
    ScriptedEngine,
    WeightUpdate,
    read_recording,
)
from roll_rollout.conformance import Policy, check_engine
from roll_rollout.transformers_engine import TransformersEngine


def parts(completion):
    return (
        completion.request_id,
        completion.prompt_ids.tolist(),
        completion.token_ids.tolist(),
        completion.logprobs.tobytes(),
        completion.versions,
        completion.finish_reason,
        completion.seed,
        completion.exact,
    )


async def test_replayed_completions_are_the_recorded_ones_bit_for_bit(
    tiny_model, model_maker, buckets_of, make_request, tmp_path
):
    path = tmp_path / "run" / "rollouts.jsonl"
    recorder = RecordingEngine(TransformersEngine(tiny_model), path)
    requests = [
        make_request([4, 5, seed], id=f"s/{seed}", seed=seed + 2**63, max_tokens=30) for seed in range(6)
    ]
    long = make_request([1], id="long", max_tokens=400)
    task = asyncio.create_task(recorder.generate(long))
    drawn = await asyncio.gather(*[recorder.generate(each) for each in requests])
    await recorder.update_weights(WeightUpdate(version=3, buckets=buckets_of(model_maker(1))))
    await recorder.abort(["long"])
    aborted = await task
    await recorder.close()
    assert aborted.finish_reason == "abort"
    replay = ReplayEngine(path)
    receipt = await replay.update_weights(WeightUpdate(version=9, buckets=()))
    assert receipt.version == 9
    for request, completion in zip([long, *reversed(requests)], [aborted, *reversed(drawn)], strict=True):
        assert parts(await replay.generate(request)) == parts(completion)
    assert (await replay.load()).sampled_tokens == 180 + len(aborted)


async def test_recording_engine_conforms_as_the_one_within(model_maker, score, buckets_of, tmp_path):
    models = [model_maker(seed) for seed in (0, 1)]
    policies = tuple(
        Policy(buckets=buckets_of(model), score=lambda *args, model=model: score(model, *args))
        for model in models
    )

    async def make_engine() -> RecordingEngine:
        return RecordingEngine(TransformersEngine(model_maker(0), max_context=300), tmp_path / "all.jsonl")

    prompts = [np.array([3, 4, 5]), np.array([9, 8])]
    results = await check_engine(
        make_engine, policies=policies, prompts=prompts, max_context=300, tolerance=2e-5
    )
    assert {each.name: each.detail for each in results if not each.passed} == {}
    assert len(read_recording(tmp_path / "all.jsonl")) > 100


async def record(path, scripts, make_request) -> None:
    engine = RecordingEngine(ScriptedEngine(lambda request: scripts.pop(0)), path)
    while scripts:
        await engine.generate(make_request([7], seed=1))
    await engine.close()


async def test_several_completions_of_one_prompt_and_seed_come_in_their_order_and_once(
    tmp_path, make_request
):
    path = tmp_path / "r.jsonl"
    await record(path, [[1, 2], [3]], make_request)
    replay = ReplayEngine(path)
    assert (await replay.generate(make_request([7], seed=1))).token_ids.tolist() == [1, 2]
    assert (await replay.generate(make_request([7], seed=1))).token_ids.tolist() == [3]
    with pytest.raises(EngineError, match="given already"):
        await replay.generate(make_request([7], seed=1))


async def test_request_that_was_never_recorded_is_named(tmp_path, make_request):
    path = tmp_path / "r.jsonl"
    await record(path, [[1, 2]], make_request)
    replay = ReplayEngine(path)
    with pytest.raises(
        EngineError, match=r"'x': recording .* nothing for seed 2; its prompt was recorded for \[1\]"
    ):
        await replay.generate(make_request([7], id="x", seed=2))
    with pytest.raises(EngineError, match="nothing for its prompt of 2 tokens"):
        await replay.generate(make_request([7, 8], seed=1))
    await replay.close()
    with pytest.raises(EngineClosed):
        await replay.generate(make_request([7], seed=1))


async def test_line_that_a_kill_cut_short_is_left_out_and_a_broken_one_is_named(
    tmp_path, make_request, caplog
):
    path = tmp_path / "r.jsonl"
    await record(path, [[1, 2], [3]], make_request)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert [each.token_ids.tolist() for each in read_recording(path)] == [[1, 2]]
    assert "last line has no end" in caplog.text
    path.write_text(whole.replace('"token_ids": [1, 2]', '"token_ids": [1]'))
    with pytest.raises(EngineError, match=r"r.jsonl', line 1: is no completion: EngineError: .* 2 logprobs"):
        read_recording(path)
    path.write_text("{}\n" + whole)
    with pytest.raises(EngineError, match=r"line 1: is no completion: KeyError"):
        ReplayEngine(path)
    with pytest.raises(EngineError, match="cannot be read"):
        ReplayEngine(tmp_path / "none.jsonl")
