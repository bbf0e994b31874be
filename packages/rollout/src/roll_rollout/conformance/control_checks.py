"""Conformance checks on engines that stand still, sleep, forget, and say how they are."""

import asyncio
from dataclasses import replace

from roll_rollout.capabilities import CheckedEngine, PausableEngine, PrefixCachingEngine, SleepingEngine
from roll_rollout.conformance.bench import Bench, Violation, expect


async def pause_keeps_requests(bench: Bench) -> None:
    """Mode "keep": no token is drawn until resume; then requests go on as if nothing had been."""
    engine = _pausable(bench)
    request, task = await bench.start_long()
    await engine.pause("keep")
    before = (await bench.engine.load()).sampled_tokens
    other = bench.start(bench.request(seed=1))
    await bench.expect_waiting(other, "the engine was paused")
    drawn = (await bench.engine.load()).sampled_tokens - before
    expect(drawn == 0 and not task.done(), f"{drawn} tokens were drawn during a pause")
    await engine.resume()
    completion = await task
    reason = completion.finish_reason
    expect(reason == "length", f"finish reason {reason!r} of a request that was frozen, allowed is 'length'")
    expect(len(await other) == 16, "a request that came during a pause did not end by itself")
    bench.expect_scored(completion, bench.policies[0], 1.0)
    if bench.capabilities.seeds:
        (whole,) = await bench.complete(replace(request, id=bench.fresh_id()))
        bench.expect_same(completion, whole, "between a frozen and an uninterrupted completion")


async def pause_aborts_requests(bench: Bench) -> None:
    """Mode "abort": requests in flight end with their tokens; later ones wait for resume."""
    engine = _pausable(bench)
    _, task = await bench.start_long()
    await engine.pause("abort")
    completion = await task
    expect(completion.finish_reason == "abort", f"finish reason {completion.finish_reason!r} after a pause")
    expect(0 < len(completion) < bench.long_tokens, f"{len(completion)} tokens after a pause that aborts")
    await _serves_after_resume(bench, engine)


async def pause_waits_for_requests(bench: Bench) -> None:
    """Mode "wait": requests in flight end by themselves; later ones wait for resume."""
    engine = _pausable(bench)
    _, task = await bench.start_long()
    await engine.pause("wait")
    expect(task.done(), "a pause that waits returned before the requests in flight had ended")
    reason = (await task).finish_reason
    expect(reason == "length", f"finish reason {reason!r} after a pause that waits, allowed is 'length'")
    await _serves_after_resume(bench, engine)


async def sleeping_engines_wake(bench: Bench) -> None:
    """Asleep, requests wait; awake, and with weights again, completions are what they were."""
    engine = bench.engine
    if not isinstance(engine, SleepingEngine):
        raise Violation("the engine claims sleep levels and has no `sleep` and `wake`")
    await bench.update(bench.policies[0], 400)
    (before,) = await bench.complete(bench.request(seed=9))
    for level in bench.capabilities.sleep_levels:
        _, running = await bench.start_long()
        await engine.sleep(level)
        reason = (await running).finish_reason
        expect(reason == "abort", f"finish reason {reason!r} of a request in flight at sleep({level})")
        held = (await bench.engine.load()).kv_tokens
        expect(held == 0, f"{held} tokens are held in an engine that sleeps at level {level}")
        waiting = bench.start(bench.request(seed=9))
        await bench.expect_waiting(waiting, f"the engine slept at level {level}")
        await engine.wake()
        if level == 2:
            await bench.expect_waiting(waiting, "the engine had no weights after level 2")
            await bench.update(bench.policies[0], 400)
        bench.expect_same(before, await waiting, f"before and after sleep({level})")


async def prefix_cache_is_forgotten(bench: Bench) -> None:
    """A forgotten prompt is computed anew, and its completion is what it was."""
    engine = bench.engine
    if not isinstance(engine, PrefixCachingEngine):
        raise Violation("the engine claims a prefix cache and has no `reset_prefix_cache`")
    (first,) = await bench.complete(bench.request(seed=2))
    await engine.reset_prefix_cache()
    before = (await bench.engine.load()).prefilled_tokens
    (second,) = await bench.complete(bench.request(seed=2))
    after = (await bench.engine.load()).prefilled_tokens
    bench.expect_scored(second, bench.policies[0], 1.0)
    if bench.capabilities.seeds:
        bench.expect_same(first, second, "before and after the prefix cache was reset")
    if before is not None and after is not None:
        computed, prompt = after - before, len(bench.prompts[0])
        expect(computed == prompt, f"{computed} of {prompt} prompt tokens were computed after a reset")


async def healthy_engines_say_so(bench: Bench) -> None:
    """A healthy engine passes its own check, also while it works."""
    engine = bench.engine
    if not isinstance(engine, CheckedEngine):
        raise Violation("the engine claims health and has no `check_health`")
    await engine.check_health()
    await bench.start_long()
    await engine.check_health()


def _pausable(bench: Bench) -> PausableEngine:
    if not isinstance(bench.engine, PausableEngine):
        raise Violation("the engine claims pause modes and has no `pause` and `resume`")
    return bench.engine


async def _serves_after_resume(bench: Bench, engine: PausableEngine) -> None:
    waiting, aborted = bench.start(bench.request(seed=1)), bench.request(seed=2)
    gone = bench.start(aborted)
    await bench.expect_waiting(waiting, "the engine was paused")
    async with asyncio.timeout(10):
        await bench.engine.abort([aborted.id])
    reason = (await gone).finish_reason
    expect(reason == "abort", f"finish reason {reason!r} of a request that was aborted during a pause")
    await engine.resume()
    expect(len(await waiting) == 16, "a request that came during a pause did not end by itself")
