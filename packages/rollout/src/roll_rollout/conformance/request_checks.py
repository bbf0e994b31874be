"""Conformance checks on what a request may ask for besides tokens: streams, continuations, stop strings."""

import asyncio
from dataclasses import replace

import numpy as np

from roll_rollout.capabilities import StreamingEngine
from roll_rollout.chunk import CompletionChunk
from roll_rollout.completion import Completion
from roll_rollout.conformance.bench import Bench, Violation, expect
from roll_rollout.errors import UnsupportedRequest
from roll_rollout.media import Media
from roll_rollout.stop_strings import kept_before_any_stop

_UNKNOWN_ADAPTER = "conformance/no such adapter"
_SAMPLES = {
    "image": Media(kind="image", data=np.zeros((4, 4, 3), np.uint8)),
    "video": Media(kind="video", data=np.zeros((2, 4, 4, 3), np.uint8)),
    "audio": Media(kind="audio", data=np.zeros(16, np.float32), sampling_rate=16000),
}


async def stop_strings_cut(bench: Bench) -> None:
    """Tokens that contain or follow the first character of a stop string are cut; a neighbour's are not."""
    if bench.decode is None:
        return
    (free,) = await bench.complete(bench.request(temperature=0.0))
    for first, last in ((3, 5), (6, 7), (0, 2)):
        stop = bench.decode(free.token_ids[first:last])
        if not stop.strip() or "\ufffd" in stop:
            continue
        kept = kept_before_any_stop(free.token_ids, (stop,), bench.decode)
        stopped, other = await bench.complete(
            bench.request(temperature=0.0, stop=("\x00never", stop)), bench.request(temperature=0.0)
        )
        got, allowed = stopped.token_ids.tolist(), free.token_ids[:kept].tolist()
        expect(got == allowed, f"tokens {got} with stop string {stop!r}, allowed is {allowed}")
        expect(stopped.finish_reason == "stop", f"finish reason {stopped.finish_reason!r} at a stop string")
        expect(len(other) == len(free), "a stop string ended a request that did not ask for it")


async def unsupported_requests_are_refused(bench: Bench) -> None:
    """A request for an unknown adapter, or for media that the engine does not take, is refused by name."""
    wrong = {_UNKNOWN_ADAPTER: bench.request(adapter=_UNKNOWN_ADAPTER)}
    for kind, media in _SAMPLES.items():
        if media.kind not in bench.capabilities.media:
            wrong[kind] = replace(bench.request(), media=(media,))
    for name, request in wrong.items():
        try:
            await bench.engine.generate(request)
        except UnsupportedRequest as error:
            expect(name in str(error), f"the message does not name {name!r}: {error}")
            continue
        expect(False, f"a request for {name!r} was accepted")


async def groups_share_their_prefill(bench: Bench) -> None:
    """The members of a group compute their prompt together, and are drawn apart."""
    size, prompt = 8, np.resize(bench.prompts[-1], bench.group_prompt_tokens)
    before = (await bench.engine.load()).prefilled_tokens
    requests = bench.request(prompt).members(range(size))
    completions = await bench.complete(*requests)
    after = (await bench.engine.load()).prefilled_tokens
    if before is None or after is None:
        raise Violation("the engine claims to share prefill and does not count prefilled_tokens")
    computed, apart = after - before, size * len(prompt)
    expect(
        computed <= apart // 2, f"{computed} prompt tokens were computed for a group, {apart} without sharing"
    )
    for completion in completions:
        bench.expect_scored(completion, bench.policies[0], 1.0)
    distinct = {tuple(completion.token_ids.tolist()) for completion in completions}
    expect(len(distinct) > 1, "all members of a group are the same")


async def streams_are_the_completion(bench: Bench) -> None:
    """Chunks follow one another without gap and add up; a stream that is left ends its request."""
    if not isinstance(bench.engine, StreamingEngine):
        raise Violation("the engine claims streaming and has no `stream`")
    request = bench.request(seed=4, max_tokens=48)
    chunks = [chunk async for chunk in bench.engine.stream(request)]
    completion = _joined(chunks)
    expect(len(chunks) > 1, "a completion of 48 tokens came in one chunk")
    bench.expect_scored(completion, bench.policies[0], 1.0)
    if bench.capabilities.seeds:
        (whole,) = await bench.complete(replace(request, id=bench.fresh_id()))
        bench.expect_same(completion, whole, "between stream and generate")
    stream = bench.engine.stream(bench.request(max_tokens=bench.long_tokens))
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined] # engines return asynchronous generators
    while (load := await bench.engine.load()).running + load.waiting + load.kv_tokens:
        await asyncio.sleep(0)


async def partial_completions_go_on(bench: Bench) -> None:
    """An aborted completion goes on where it stopped; tokens that were there stay bit for bit."""
    request, task = await bench.start_long()
    await bench.engine.abort([request.id])
    partial = await task
    expect(partial.finish_reason == "abort", f"finish reason {partial.finish_reason!r}; raise long_tokens")
    longer = replace(request.sampling, max_tokens=len(partial) + 20)
    asked = replace(request, id=bench.fresh_id(), sampling=longer)
    (completion,) = await bench.complete(asked.resumed(partial))
    start = len(partial)
    kept = np.array_equal(completion.token_ids[:start], partial.token_ids)
    kept = kept and np.array_equal(completion.logprobs[:start], partial.logprobs)
    expect(kept, "tokens or log-probs of the partial completion changed")
    got = (len(completion), completion.finish_reason)
    expect(got == (start + 20, "length"), f"{got} with room for 20 more, allowed is ({start + 20}, 'length')")
    bench.expect_scored(completion, bench.policies[0], 1.0)
    if bench.capabilities.continuation == "exact":
        (whole,) = await bench.complete(replace(asked, id=bench.fresh_id()))
        bench.expect_same(completion, whole, "between a continued and an uninterrupted completion")


def _joined(chunks: list[CompletionChunk]) -> Completion:
    """Returns the completion that a stream ended with, if its chunks add up to it."""
    completion = chunks[-1].completion if chunks else None
    if completion is None:
        raise Violation("a stream ended without the completion")
    length = 0
    for chunk in chunks:
        expect(chunk.start == length, f"a chunk starts at {chunk.start} after {length} tokens")
        expect(len(chunk.logprobs) == len(chunk.token_ids), "a chunk has tokens without log-probs")
        length += len(chunk.token_ids)
    tokens = np.concatenate([chunk.token_ids for chunk in chunks])
    logprobs = np.concatenate([chunk.logprobs for chunk in chunks])
    expect(np.array_equal(tokens, completion.token_ids), "the chunks are not the tokens of the completion")
    same = np.array_equal(logprobs, completion.logprobs, equal_nan=True)
    expect(same, "the chunks are not the log-probs of the completion")
    return completion
