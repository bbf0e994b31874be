"""The conformance suite passes on both engines, and notices engines that misbehave."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from roll_rollout import (
    AdapterConfig,
    Completion,
    EngineError,
    GenerateRequest,
    ScriptedEngine,
    TensorSpec,
    WeightReceipt,
    WeightUpdate,
    pack_buckets,
)
from roll_rollout.conformance import CHECKS, AdapterPolicy, CheckResult, Policy, check_engine
from roll_rollout.transformers_engine import TransformersEngine

PROMPTS = [np.array([3, 4, 5]), np.array([9, 8]), np.array([4, 4, 7, 1, 2])]


def failed(results: list[CheckResult]) -> dict[str, str]:
    return {result.name: result.detail for result in results if not result.passed}


LORA = AdapterConfig(rank=2, alpha=8.0, target_modules=("q_proj", "down_proj"))


@pytest.mark.parametrize("max_batch", [3, 64])
async def test_transformers_engine_conforms(
    max_batch, model_maker, score, buckets_of, adapter_maker, letter_tokenizer
):
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

    async def make_engine() -> TransformersEngine:
        return TransformersEngine(
            model_maker(0), max_batch=max_batch, max_context=300, tokenizer=letter_tokenizer
        )

    results = await check_engine(
        make_engine,
        policies=policies,
        prompts=PROMPTS,
        max_context=300,
        tolerance=2e-5,
        deadline_s=20,
        decode=letter_tokenizer.decode,
        adapters=tuple(adapters),
    )
    assert failed(results) == {}
    assert [result.name for result in results] == [
        *list(CHECKS)[:-1],
        "long_prompts_are_refused",
        "close_ends_all_requests",
    ]


def digits(request: GenerateRequest) -> Iterator[int]:
    """Endless digits that depend on prompt and seed, or on the prompt alone when greedy."""
    seed = request.seed if request.sampling.temperature else 0
    rng = np.random.default_rng([seed, *request.prompt_ids.tolist()])
    while True:
        yield int(rng.integers(10))


def scripted_policies() -> tuple[Policy, Policy]:
    def tensors(value: float):
        for name, shape in (("a", (2, 3)), ("b", (4,))):
            yield name, "float32", shape, np.full(shape, value, np.float32).reshape(-1).view(np.uint8)

    def score(prompt_ids, token_ids, temperature):
        return np.zeros(len(token_ids))

    return tuple(  # type: ignore[return-value]
        Policy(buckets=tuple(pack_buckets(tensors(value), max_bytes=24)), score=score) for value in (0.0, 1.0)
    )


SPECS = [
    TensorSpec(names=("a",), dtype="float32", shape=(2, 3)),
    TensorSpec(names=("b",), dtype="float32", shape=(4,)),
]


async def run_scripted(engine_class: type[ScriptedEngine], **options) -> dict[str, str]:
    async def make_engine() -> ScriptedEngine:
        return engine_class(digits, specs=SPECS, max_context=300)

    settings = {"max_context": 300, "deadline_s": 5.0} | options
    return failed(await check_engine(make_engine, policies=scripted_policies(), prompts=PROMPTS, **settings))


async def test_scripted_engine_conforms():
    assert await run_scripted(ScriptedEngine) == {}


class ShiftedLogprobs(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        return replace(completion, logprobs=completion.logprobs - np.float32(0.5))


class NeighbourDependentTokens(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        busy = (await self.load()).running > 3
        completion = await super().generate(request)
        if not busy:
            return completion
        return replace(completion, token_ids=(completion.token_ids + 1) % 10)


class DropsTheEndToken(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        if completion.finish_reason != "stop" or not len(completion):
            return completion
        kept = len(completion) - 1
        return replace(
            completion,
            token_ids=completion.token_ids[:kept],
            logprobs=completion.logprobs[:kept],
            versions=((completion.newest_version, kept),),
        )


class LosesAbortedTokens(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        if completion.finish_reason != "abort":
            return completion
        empty = {"token_ids": completion.token_ids[:0], "logprobs": completion.logprobs[:0]}
        return replace(completion, **empty, versions=((0, 0),))


class IgnoresAborts(ScriptedEngine):
    async def abort(self, request_ids) -> None:
        return None


class ClaimsTheNewVersion(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        return replace(completion, versions=((completion.newest_version, len(completion)),))


class AcceptsAnyUpdate(ScriptedEngine):
    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        self._specs = None
        return await super().update_weights(update)


class ForgetsTheVersion(ScriptedEngine):
    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        receipt = await super().update_weights(update)
        self._version = 0
        return receipt


class HangsAtClose(ScriptedEngine):
    async def close(self) -> None:
        self._closed = True


class CutsShort(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        limit = max(1, request.sampling.max_tokens - 1)
        return await super().generate(replace(request, sampling=replace(request.sampling, max_tokens=limit)))


class TakesIdsTwice(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        if request.id not in self._playing:
            return await super().generate(request)
        twin = await super().generate(replace(request, id=request.id + "'"))
        return replace(twin, request_id=request.id)


@pytest.mark.parametrize(
    ("engine_class", "check"),
    [
        (ShiftedLogprobs, "logprobs_agree_with_scorer"),
        (NeighbourDependentTokens, "seeds_reproduce"),
        (NeighbourDependentTokens, "greedy_ignores_seeds"),
        (DropsTheEndToken, "stop_ids_end_and_stay"),
        (CutsShort, "max_tokens_ends_with_length"),
        (LosesAbortedTokens, "abort_keeps_partial_tokens"),
        (ClaimsTheNewVersion, "running_requests_cross_updates"),
        (AcceptsAnyUpdate, "wrong_updates_change_nothing"),
        (ForgetsTheVersion, "updates_reach_the_engine"),
        (TakesIdsTwice, "ids_in_flight_are_refused"),
    ],
)
async def test_suite_notices_an_engine_that_misbehaves(engine_class, check):
    failures = await run_scripted(engine_class)
    assert check in failures
    assert failures[check]


async def test_suite_notices_an_engine_that_ignores_aborts():
    failures = await run_scripted(IgnoresAborts, long_tokens=200)
    assert "abort_keeps_partial_tokens" in failures
    assert "abort_reaches_unstarted_requests" in failures


async def test_suite_notices_an_engine_whose_close_ends_nothing():
    failures = await run_scripted(HangsAtClose)
    assert list(failures) == ["close_ends_all_requests"]


async def test_suite_notices_an_engine_without_context_limit():
    async def make_engine() -> ScriptedEngine:
        return ScriptedEngine(digits, specs=SPECS)

    results = await check_engine(make_engine, policies=scripted_policies(), prompts=PROMPTS, max_context=300)
    assert list(failed(results)) == ["long_prompts_are_refused"]


async def test_check_that_never_ends_is_cut_at_its_deadline():
    class Stuck(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError("never set")

    everything_but_one = set(CHECKS) - {"seeds_reproduce"}
    failures = await run_scripted(Stuck, deadline_s=0.05, skip=everything_but_one, max_context=None)
    assert failures == {"seeds_reproduce": "not done after 0.05 s"}


async def test_unknown_check_cannot_be_skipped():
    with pytest.raises(EngineError, match="sampling_is_great"):
        await run_scripted(ScriptedEngine, skip=["sampling_is_great"])
