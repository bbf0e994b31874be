"""Conformance checks on weight updates: they arrive, they show in versions, and wrong ones change nothing."""

from collections.abc import Callable
from dataclasses import replace

from roll_rollout.conformance.bench import Bench, expect
from roll_rollout.errors import WeightMismatch
from roll_rollout.weights import DTYPE_BYTES, WeightBucket, WeightUpdate


async def updates_reach_the_engine(bench: Bench) -> None:
    """After an update, completions are scored by the new weights and carry the new version; and back."""
    for version, policy in ((101, bench.policies[1]), (102, bench.policies[0])):
        await bench.update(policy, version)
        requests = [bench.request(prompt, seed=seed) for prompt in bench.prompts for seed in range(2)]
        for completion in await bench.complete(*requests):
            bench.expect_scored(completion, policy, 1.0)
            got, allowed = completion.versions, ((version, len(completion)),)
            expect(got == allowed, f"versions {got} after the update, allowed is {allowed}")


async def running_requests_cross_updates(bench: Bench) -> None:
    """A request that meets an update goes on; its tokens carry the version that sampled them.

    An engine that refreshes keys and values draws what follows as if the new weights had read all before.
    """
    second = bench.policies[1] if bench.capabilities.refreshes_kv else bench.policies[0]
    await bench.update(bench.policies[0], 200)
    _, task = await bench.start_long()
    await bench.update(second, 201)
    completion = await task
    versions = [version for version, _ in completion.versions]
    expect(versions == [200, 201], f"versions {completion.versions}; if [200] alone, raise long_tokens")
    extremes = (completion.oldest_version, completion.newest_version)
    expect(extremes == (200, 201), f"oldest and newest version are {extremes}")
    bench.expect_crossing(completion, bench.policies[0], second)


async def wrong_updates_change_nothing(bench: Bench) -> None:
    """An update with a tensor unknown, missing, duplicated or of wrong shape or dtype is refused whole."""
    await bench.update(bench.policies[0], 300)
    (before,) = await bench.complete(bench.request(seed=9))
    for fault, spoil in _FAULTS.items():
        buckets = bench.policies[1].buckets
        update = WeightUpdate(version=301, buckets=(*buckets[:-1], *spoil(buckets[-1])))
        try:
            await bench.engine.update_weights(update)
        except WeightMismatch as error:
            named = any(name in str(error) for bucket in update.buckets for name in bucket.names)
            named = named or any(name in str(error) for name in buckets[-1].names)
            expect(named, f"{fault}: the message names no tensor: {error}")
        else:
            expect(False, f"{fault}: the update was accepted")
        (after,) = await bench.complete(bench.request(seed=9))
        bench.expect_same(before, after, f"before and after a refused update ({fault})")
        expect(after.versions == before.versions, f"{fault}: version changed to {after.newest_version}")


def _renamed(bucket: WeightBucket) -> list[WeightBucket]:
    return [replace(bucket, names=("conformance.unknown", *bucket.names[1:]))]


def _missing(bucket: WeightBucket) -> list[WeightBucket]:
    """Returns the bucket without its first tensor."""
    tensors = list(bucket.tensors())[1:]
    if not tensors:
        return []
    size = sum(payload.size for *_, payload in tensors)
    names, dtypes, shapes, _ = zip(*tensors, strict=True)
    return [WeightBucket(names=names, dtypes=dtypes, shapes=shapes, payload=bucket.payload[-size:])]


def _duplicated(bucket: WeightBucket) -> list[WeightBucket]:
    return [bucket, bucket]


def _reshaped(bucket: WeightBucket) -> list[WeightBucket]:
    return [replace(bucket, shapes=((1, *bucket.shapes[0]), *bucket.shapes[1:]))]


def _retyped(bucket: WeightBucket) -> list[WeightBucket]:
    size = DTYPE_BYTES[bucket.dtypes[0]]
    other = next(each for each, width in DTYPE_BYTES.items() if width == size and each != bucket.dtypes[0])
    return [replace(bucket, dtypes=(other, *bucket.dtypes[1:]))]


_FAULTS: dict[str, Callable[[WeightBucket], list[WeightBucket]]] = {
    "unknown name": _renamed,
    "missing tensor": _missing,
    "duplicated tensor": _duplicated,
    "wrong shape": _reshaped,
    "wrong dtype": _retyped,
}
