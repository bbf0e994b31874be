"""The scripted engine plays back tokens under the rules of every engine."""

import asyncio
from itertools import count, repeat

import numpy as np
import pytest
from roll_rollout import EngineError, SamplingError, ScriptedEngine, WeightUpdate


async def test_script_is_played_back_with_certain_logprobs(make_request):
    engine = ScriptedEngine(lambda request: request.prompt_ids[::-1])
    completion = await engine.generate(make_request([5, 6, 7], seed=4))
    assert completion.token_ids.tolist() == [7, 6, 5]
    assert completion.logprobs.tolist() == [0.0, 0.0, 0.0]
    assert (completion.finish_reason, completion.seed, completion.versions) == ("stop", 4, ((0, 3),))


@pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [
        ({"max_tokens": 3}, [0, 1, 2], "length"),
        ({"max_tokens": 9, "stop_token_ids": (4, 2)}, [0, 1, 2], "stop"),
        ({"max_tokens": 3, "stop_token_ids": (2,)}, [0, 1, 2], "stop"),
        ({"max_tokens": 9, "stop": ("23",)}, [0, 1], "stop"),
    ],
)
async def test_endless_script_ends_by_the_limits_of_the_request(limits, tokens, reason, make_request):
    engine = ScriptedEngine(lambda request: count(), decode=lambda ids: "".join(map(str, ids)))
    completion = await engine.generate(make_request(**limits))
    assert completion.token_ids.tolist() == tokens
    assert completion.finish_reason == reason


async def test_stop_strings_need_a_decoder(make_request):
    with pytest.raises(SamplingError, match="decode"):
        await ScriptedEngine(lambda request: [1]).generate(make_request(stop=("x",)))


async def test_failing_script_becomes_an_engine_error_that_names_the_request(make_request):
    def respond(request):
        yield 1
        raise KeyError("no answer")

    with pytest.raises(EngineError, match=r"'q'.*no answer"):
        await ScriptedEngine(respond).generate(make_request(id="q"))


async def test_requests_take_the_time_they_are_given(make_request):
    clock, sleeping = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal clock
        wake = asyncio.Event()
        due = clock + seconds
        sleeping.append((due, wake))
        await wake.wait()
        clock = max(clock, due)

    engine = ScriptedEngine(
        lambda request: repeat(1), seconds_per_token=lambda request: float(request.seed), sleep=sleep
    )
    tasks = [asyncio.create_task(engine.generate(make_request(seed=seed, max_tokens=4))) for seed in (3, 1)]
    ended: list[tuple[float, int]] = []
    for task in tasks:
        task.add_done_callback(lambda done: ended.append((clock, done.result().seed)))
    while not all(task.done() for task in tasks):
        for _ in range(4):
            await asyncio.sleep(0)
        if sleeping:
            sleeping.sort(key=lambda each: each[0])
            sleeping.pop(0)[1].set()
    await asyncio.sleep(0)
    assert ended == [(4.0, 1), (12.0, 3)]


async def test_abort_wakes_a_request_that_waits_for_its_next_token(make_request):
    async def never(seconds: float) -> None:
        await asyncio.Event().wait()

    engine = ScriptedEngine(lambda request: repeat(1), seconds_per_token=lambda request: 1.0, sleep=never)
    task = asyncio.create_task(engine.generate(make_request(id="slow")))
    await asyncio.sleep(0)
    await engine.abort(["slow"])
    completion = await task
    assert (len(completion), completion.finish_reason, completion.versions) == (0, "abort", ((0, 0),))


async def test_any_update_is_taken_without_specs_and_counts_from_the_next_token(make_request):
    engine = ScriptedEngine(lambda request: count(), version=6)
    task = asyncio.create_task(engine.generate(make_request(max_tokens=5)))
    while (await engine.load()).kv_tokens < 3 + 2:
        await asyncio.sleep(0)
    receipt = await engine.update_weights(WeightUpdate(version=7, buckets=()))
    assert receipt.version == 7
    assert (await task).versions == ((6, 2), (7, 3))


async def test_tokens_are_numpy_of_the_documented_types(make_request):
    completion = await ScriptedEngine(lambda request: [1, 2]).generate(make_request())
    assert completion.token_ids.dtype == np.int32
    assert completion.logprobs.dtype == np.float32
