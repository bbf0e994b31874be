"""Tests of `VLLMEngine` on a real vLLM. `test_vllm_environment.py` runs them in vLLM's own environment.

vLLM takes a minute to start, so that all tests but those of other options share one engine, and the
conformance suite, which closes it, comes last.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from roll_rollout import AdapterConfig, EngineError, WeightMismatch, WeightUpdate, pack_buckets
from roll_rollout.conformance import CHECKS, AdapterPolicy, Policy, check_engine
from roll_rollout.vllm_engine import VLLMEngine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

CONTEXT = 512
TOLERANCE = 2e-4
PROMPTS = [np.array([3, 4, 5]), np.array([9, 8]), np.array([4, 4, 7, 1, 2])]
LORA = AdapterConfig(rank=8, alpha=16.0, target_modules=("q_proj", "down_proj"))
SHAPE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
OPTIONS = {"enforce_eager": True, "disable_log_stats": True, "kv_cache_memory_bytes": 256 * 1024 * 1024}


@pytest.fixture(scope="module", autouse=True)
def cpu_settings():
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


@pytest.fixture(scope="module")
def directory(tmp_path_factory, model_maker, letter_tokenizer) -> Path:
    path = tmp_path_factory.mktemp("model")
    model_maker(0, **SHAPE).save_pretrained(path)
    letter_tokenizer.save_pretrained(path)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(directory):
    lora = {"enable_lora": True, "max_lora_rank": LORA.rank, "max_loras": 2}
    started = await VLLMEngine.start(
        directory, dtype="float32", max_batch=32, max_context=CONTEXT, options=OPTIONS | lora
    )
    yield started
    await started.close()


@pytest.fixture(scope="module")
def policies(model_maker, buckets_of, score) -> tuple[Policy, Policy]:
    models = [model_maker(seed, **SHAPE) for seed in (0, 1)]
    return tuple(
        Policy(buckets=buckets_of(model), score=lambda *args, model=model: score(model, *args))
        for model in models
    )


async def test_options_of_vllm_are_checked_by_name(directory):
    with pytest.raises(EngineError, match="'tensor_paralel_size' is unknown to vLLM, the nearest is"):
        await VLLMEngine.start(directory, options={"tensor_paralel_size": 2})
    with pytest.raises(EngineError, match="'max_num_seqs' is set by the engine, from max_batch"):
        await VLLMEngine.start(directory, options={"max_num_seqs": 2})


async def test_update_under_the_other_name_of_tied_weights_arrives(engine, policies, make_request):
    first, other = policies
    swap = {"model.embed_tokens.weight": "lm_head.weight"}
    renamed = [
        replace(bucket, names=tuple(swap.get(name, name) for name in bucket.names))
        for bucket in other.buckets
    ]
    await engine.update_weights(WeightUpdate(version=1, buckets=tuple(renamed)))
    completion = await engine.generate(make_request(seed=3, max_tokens=20))
    expected = other.score(completion.prompt_ids, completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)
    await engine.update_weights(WeightUpdate(version=2, buckets=first.buckets))


async def test_filtered_logprobs_are_those_of_the_kept_set(engine, make_request):
    completions = await asyncio.gather(
        *[engine.generate(make_request(seed=seed, max_tokens=1, top_k=3)) for seed in range(64)]
    )
    reported = {int(each.token_ids[0]): float(np.exp(each.logprobs[0])) for each in completions}
    assert len(reported) <= 3
    assert sum(reported.values()) == pytest.approx(1.0, abs=1e-3)


async def test_adapter_of_wrong_shape_is_refused_and_others_are_unharmed(engine, make_request):
    from roll_rollout import AdapterUpdate

    payload = np.zeros(8 * 3 * 4, np.uint8)
    names = ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",)
    names += (names[0].replace("lora_A", "lora_B"),)
    tensors = [(name, "float32", (8, 3), payload) for name in names]
    update = AdapterUpdate(
        name="wrong", version=1, config=LORA, buckets=tuple(pack_buckets(tensors, max_bytes=1000))
    )
    with pytest.raises(WeightMismatch, match=r"q_proj.lora_A.weight' is \[8, 3\], needed is \[8, 64\]"):
        await engine.load_adapter(update)
    assert len(await engine.generate(make_request(max_tokens=4))) == 4


async def test_vllm_conforms(engine, policies, score, adapter_maker, letter_tokenizer):
    adapters = []
    for seed in (1, 2):
        buckets, adapted = adapter_maker(LORA, seed, **SHAPE)
        adapters.append(
            AdapterPolicy(
                config=LORA, buckets=buckets, score=lambda *args, model=adapted: score(model, *args)
            )
        )

    async def make_engine() -> VLLMEngine:
        return engine

    results = await check_engine(
        make_engine,
        policies=policies,
        prompts=PROMPTS,
        max_context=CONTEXT,
        tolerance=TOLERANCE,
        long_tokens=200,
        deadline_s=120,
        group_prompt_tokens=300,
        decode=letter_tokenizer.decode,
        adapters=tuple(adapters),
    )
    for result in results:
        print(f"{'passed' if result.passed else 'FAILED'} {result.name} {result.detail}")
    assert [result.name for result in results if not result.passed] == []
    left_out = {*CHECKS} - {result.name for result in results}
    assert left_out == {"sleeping_engines_wake"}
    with pytest.raises(EngineError, match="closed"):
        await engine.check_health()
