"""Conformance checks on what is sampled: log-probs, seeds, greedy decoding, limits and end tokens."""

import asyncio

import numpy as np

from roll_rollout.conformance.bench import Bench, expect


async def logprobs_agree_with_scorer(bench: Bench) -> None:
    """Behavior log-probs are those of the distribution after temperature."""
    for temperature in (1.0, 0.7, 1.6, 0.0):
        requests = [bench.request(prompt, seed=3, temperature=temperature) for prompt in bench.prompts]
        for completion in await bench.complete(*requests):
            bench.expect_scored(completion, bench.policies[0], temperature)


async def seeds_reproduce(bench: Bench) -> None:
    """A completion depends on its seed, not on its neighbours."""
    (alone,) = await bench.complete(bench.request(seed=5))
    (again,) = await bench.complete(bench.request(seed=5))
    bench.expect_same(alone, again, "between two runs of one seed")
    crowd = [bench.request(prompt, seed=seed) for seed in range(6) for prompt in bench.prompts]
    completions = await bench.complete(*crowd, bench.request(seed=5))
    bench.expect_same(alone, completions[-1], "between a run alone and one in a crowd")


async def greedy_ignores_seeds(bench: Bench) -> None:
    """At temperature 0 every seed gives the same completion, alone and in a crowd."""
    (alone,) = await bench.complete(bench.request(seed=0, temperature=0.0))
    crowd = [bench.request(seed=seed, temperature=float(seed % 2)) for seed in range(1, 9)]
    for request, completion in zip(crowd, await bench.complete(*crowd), strict=True):
        if request.sampling.temperature == 0.0:
            bench.expect_same(alone, completion, "between two greedy runs")


async def max_tokens_ends_with_length(bench: Bench) -> None:
    """Without end tokens a completion has `max_tokens` tokens exactly, and says why it ended."""
    for limit in (1, 2, 7):
        (completion,) = await bench.complete(bench.request(max_tokens=limit))
        expect(len(completion) == limit, f"{len(completion)} tokens with max_tokens {limit}")
        reason = completion.finish_reason
        expect(reason == "length", f"finish reason {reason!r} at max_tokens, allowed is 'length'")


async def stop_ids_end_and_stay(bench: Bench) -> None:
    """The first end token ends a completion and is its last token."""
    (free,) = await bench.complete(bench.request(temperature=0.0))
    for token in sorted(set(free.token_ids.tolist())):
        end = int(np.flatnonzero(free.token_ids == token)[0]) + 1
        (stopped,) = await bench.complete(bench.request(temperature=0.0, stop_token_ids=(token,)))
        got, allowed = stopped.token_ids.tolist(), free.token_ids[:end].tolist()
        expect(got == allowed, f"tokens {got} with end token {token}, allowed is {allowed}")
        expect(stopped.finish_reason == "stop", f"finish reason {stopped.finish_reason!r} at an end token")


async def every_request_ends_once(bench: Bench) -> None:
    """Groups, mixed lengths and more requests than fit at once: each call returns its own completion."""
    requests = [
        bench.request(prompt, seed=member, max_tokens=1 + (5 * member + 3 * index) % 13)
        for index, prompt in enumerate(bench.prompts)
        for member in range(12)
    ]
    first, second = await asyncio.gather(bench.complete(*requests[::2]), bench.complete(*requests[1::2]))
    expect(len(first) + len(second) == len(requests), "a request got lost")
    load = await bench.engine.load()
    expect(load.running == load.waiting == load.kv_tokens == 0, f"{load} after all requests ended")
