"""Conformance checks on LoRA adapters: they draw what they should, are swapped whole, and go away."""

from dataclasses import replace

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import AdapterEngine
from roll_rollout.conformance.bench import AdapterPolicy, Bench, Scored, Violation, expect
from roll_rollout.errors import EngineError, UnsupportedRequest, WeightMismatch
from roll_rollout.weights import WeightReceipt, weights_checksum

_FIRST, _SECOND = "conformance/first", "conformance/second"


async def adapters_draw_their_own(bench: Bench) -> None:
    """Requests of two adapters and of none, mixed, are each scored by their own weights and versions."""
    engine, (first, second) = _adapter_engine(bench)
    await _load(engine, _FIRST, first, 501)
    await _load(engine, _SECOND, second, 502)
    loaded = await engine.adapters()
    expect(loaded == {_FIRST: 501, _SECOND: 502}, f"loaded adapters are {loaded}")
    wanted: list[tuple[str | None, Scored]] = [(_FIRST, first), (None, bench.policies[0]), (_SECOND, second)]
    wanted *= 2
    requests = [
        bench.request(prompt, seed=seed, adapter=name)
        for seed, (name, _) in enumerate(wanted)
        for prompt in bench.prompts
    ]
    expected = [policy for _, policy in wanted for _ in bench.prompts]
    for request, policy, completion in zip(requests, expected, await bench.complete(*requests), strict=True):
        bench.expect_scored(completion, policy, 1.0)
        if request.adapter is not None:
            versions, allowed = completion.versions, ((loaded[request.adapter], len(completion)),)
            expect(
                versions == allowed, f"versions {versions} under {request.adapter!r}, allowed is {allowed}"
            )


async def running_requests_cross_swaps(bench: Bench) -> None:
    """A request that meets other weights for its adapter goes on; a wrong swap changes nothing."""
    engine, (first, second) = _adapter_engine(bench)
    await _load(engine, _FIRST, first, 510)
    _, task = await bench.start_long(adapter=_FIRST)
    await _load(engine, _FIRST, second, 511)
    completion = await task
    versions = [version for version, _ in completion.versions]
    expect(versions == [510, 511], f"versions {completion.versions} over a swap; if [510], raise long_tokens")
    if bench.capabilities.refreshes_kv:
        bench.expect_crossing(completion, first, second)
    spoilt = list(first.buckets)
    names = tuple(name.replace(".lora_", ".unknown_module.lora_") for name in spoilt[-1].names)
    spoilt[-1] = replace(spoilt[-1], names=names)
    try:
        await engine.load_adapter(
            AdapterUpdate(name=_FIRST, version=512, config=first.config, buckets=tuple(spoilt))
        )
    except WeightMismatch:
        pass
    else:
        expect(False, "an adapter with unknown tensors was accepted")
    (after,) = await bench.complete(bench.request(adapter=_FIRST))
    bench.expect_scored(after, second, 1.0)
    expect(after.newest_version == 511, f"version {after.newest_version} after a refused swap, not 511")


async def adapters_are_unloaded(bench: Bench) -> None:
    """An unloaded adapter is refused and the weights are as without it; one in use stays."""
    engine, (first, second) = _adapter_engine(bench)
    await _load(engine, _FIRST, first, 520)
    await _load(engine, _SECOND, second, 521)
    _, task = await bench.start_long(adapter=_FIRST)
    try:
        await engine.unload_adapter(_FIRST)
    except EngineError as error:
        expect(_FIRST in str(error), f"the message does not name the adapter: {error}")
    else:
        expect(False, "an adapter was unloaded while a request ran under it")
    bench.expect_scored(await task, first, 1.0)
    for name in (_FIRST, _SECOND):
        await engine.unload_adapter(name)
    left = await engine.adapters()
    expect(left == {}, f"adapters {left} after all were unloaded")
    try:
        await bench.engine.generate(bench.request(adapter=_FIRST))
    except UnsupportedRequest:
        pass
    else:
        expect(False, "an unloaded adapter was accepted")
    (plain,) = await bench.complete(bench.request(seed=3))
    bench.expect_scored(plain, bench.policies[0], 1.0)


def _adapter_engine(bench: Bench) -> tuple[AdapterEngine, tuple[AdapterPolicy, AdapterPolicy]]:
    if not isinstance(bench.engine, AdapterEngine) or bench.adapters is None:
        raise Violation("the engine claims adapters and has no `load_adapter` and its companions")
    return bench.engine, bench.adapters


async def _load(engine: AdapterEngine, name: str, adapter: AdapterPolicy, version: int) -> None:
    update = AdapterUpdate(name=name, version=version, config=adapter.config, buckets=adapter.buckets)
    receipt = await engine.load_adapter(update)
    expected = WeightReceipt(version=version, checksum=weights_checksum(adapter.buckets))
    expect(receipt == expected, f"the receipt is {receipt}, expected is {expected}")
