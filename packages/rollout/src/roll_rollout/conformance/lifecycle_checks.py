"""Conformance checks on the life of a request: abort, cancellation, refusal, and the end of the engine."""

import asyncio

import numpy as np

from roll_rollout.capabilities import CheckedEngine
from roll_rollout.conformance.bench import Bench, expect
from roll_rollout.errors import EngineClosed, EngineError, PromptTooLong
from roll_rollout.request import GenerateRequest


async def abort_keeps_partial_tokens(bench: Bench) -> None:
    """An aborted call returns what was sampled so far, once; others go on; its id is free again."""
    request, task = await bench.start_long()
    neighbour = bench.start(bench.request(seed=1))
    await bench.engine.abort([request.id, "conformance/no such id"])
    completion = await task
    reason = completion.finish_reason
    expect(reason == "abort", f"finish reason {reason!r} after abort; if 'length', raise long_tokens")
    expect(0 < len(completion) < bench.long_tokens, f"{len(completion)} tokens after abort")
    bench.expect_scored(completion, bench.policies[0], 1.0)
    by_itself = (await neighbour).finish_reason == "length"
    expect(by_itself, "a neighbour of an aborted request did not end by itself")
    await bench.engine.abort([request.id])
    again = await bench.engine.generate(_shortened(request))
    reason = again.finish_reason
    expect(reason == "length", f"finish reason {reason!r} after the id was used again")


async def abort_reaches_unstarted_requests(bench: Bench) -> None:
    """Requests that are aborted in the turn in which they were submitted end as well."""
    requests = [bench.request(seed=seed, max_tokens=bench.long_tokens) for seed in range(5)]
    tasks = [bench.start(request) for request in requests]
    await asyncio.sleep(0)
    await bench.engine.abort([request.id for request in requests])
    for completion in await asyncio.gather(*tasks):
        expect(completion.finish_reason == "abort", f"finish reason {completion.finish_reason!r} after abort")


async def cancelled_calls_leave_nothing(bench: Bench) -> None:
    """Cancelling a call frees what the request held."""
    _, task = await bench.start_long()
    task.cancel()
    await asyncio.wait([task])
    while (load := await bench.engine.load()).running + load.waiting + load.kv_tokens:
        await asyncio.sleep(0)


async def load_counts_requests(bench: Bench) -> None:
    """`load` knows the requests in flight."""
    await bench.start_long()
    for seed in range(3):
        bench.start(bench.request(seed=seed, max_tokens=bench.long_tokens))
    await asyncio.sleep(0)
    load = await bench.engine.load()
    expect(load.running + load.waiting == 4, f"{load} with 4 requests in flight")


async def ids_in_flight_are_refused(bench: Bench) -> None:
    """A second request under an id in flight fails; the first is unharmed."""
    request, task = await bench.start_long()
    try:
        await bench.engine.generate(request)
    except EngineError:
        expect(not task.done(), "a refused request ended the one that has its id")
        return
    expect(False, "an id in flight was accepted a second time")


async def close_ends_all_requests(bench: Bench) -> None:
    """After close every call in flight and every later one fails with `EngineClosed`."""
    _, task = await bench.start_long()
    tasks = [task, *(bench.start(bench.request(seed=seed)) for seed in range(5))]
    await asyncio.sleep(0)
    await asyncio.gather(bench.engine.close(), bench.engine.close())
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        expect(isinstance(result, EngineClosed), f"a call in flight returned {result!r} at close")
    try:
        await bench.engine.generate(bench.request())
    except EngineClosed:
        pass
    else:
        expect(False, "a closed engine accepted a request")
    if isinstance(bench.engine, CheckedEngine):
        try:
            await bench.engine.check_health()
        except EngineClosed:
            return
        expect(False, "a closed engine says that it is well")


def long_prompts_are_refused(max_context: int) -> "_LongPrompts":
    """Returns the check for an engine with this context."""
    return _LongPrompts(max_context)


class _LongPrompts:
    """A prompt without room for a token is refused by its length; others go on, and fill the context."""

    def __init__(self, max_context: int) -> None:
        self._max_context = max_context

    async def __call__(self, bench: Bench) -> None:
        neighbour = bench.start(bench.request())
        context = self._max_context
        for length in (context, context + 5):
            try:
                await bench.engine.generate(bench.request(np.resize(bench.prompts[0], length)))
            except PromptTooLong as error:
                named = str(length) in str(error)
                expect(named, f"the message names no length: {error}")
                continue
            expect(False, f"a prompt of {length} tokens was accepted in a context of {context}")
        expect(len(await neighbour) > 0, "a neighbour of a refused request did not end")
        full = bench.request(np.resize(bench.prompts[0], context - 1), max_tokens=9)
        (completion,) = await bench.complete(full)
        got = (len(completion), completion.finish_reason)
        expect(got == (1, "length"), f"{got} with room for one token, allowed is (1, 'length')")


def _shortened(request: GenerateRequest) -> GenerateRequest:
    sampling = type(request.sampling)(max_tokens=2)
    return GenerateRequest(id=request.id, prompt_ids=request.prompt_ids, seed=request.seed, sampling=sampling)
