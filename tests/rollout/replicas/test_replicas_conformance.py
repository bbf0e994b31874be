"""A set of engines passes the conformance suite itself, of one engine and of three."""

import numpy as np
import pytest
from roll_rollout import AdapterConfig
from roll_rollout.conformance import CHECKS, AdapterPolicy, Policy, check_engine
from roll_rollout.replicas import Replicas
from roll_rollout.transformers_engine import TransformersEngine

PROMPTS = [np.array([3, 4, 5]), np.array([9, 8]), np.array([4, 4, 7, 1, 2])]
LORA = AdapterConfig(rank=2, alpha=8.0, target_modules=("q_proj", "down_proj"))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
async def test_replicas_conform(count, model_maker, score, buckets_of, adapter_maker, letter_tokenizer):
    models = [model_maker(seed) for seed in (0, 1)]
    policies = tuple(
        Policy(buckets=buckets_of(model), score=lambda *args, model=model: score(model, *args))
        for model in models
    )
    adapters = []
    for seed in (1, 2):
        buckets, adapted = adapter_maker(LORA, seed)
        adapters.append(
            AdapterPolicy(
                config=LORA, buckets=buckets, score=lambda *args, model=adapted: score(model, *args)
            )
        )

    async def make_engine() -> Replicas:
        return Replicas(
            {
                f"replica-{number}": TransformersEngine(
                    model_maker(0), max_batch=8, max_context=300, tokenizer=letter_tokenizer
                )
                for number in range(count)
            }
        )

    results = await check_engine(
        make_engine,
        policies=policies,
        prompts=PROMPTS,
        max_context=300,
        tolerance=2e-5,
        deadline_s=60,
        decode=letter_tokenizer.decode,
        adapters=tuple(adapters),
    )
    assert {result.name: result.detail for result in results if not result.passed} == {}
    assert [result.name for result in results] == [
        *list(CHECKS)[:-1],
        "long_prompts_are_refused",
        "close_ends_all_requests",
    ]
