"""Weight sync: nothing trains on unless every replica acknowledged the published bytes and samples with them.

The trainer and the engines are the real ones, with a tiny model.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from roll_launch.config import HealthConfig, PolicyLearnerConfig, RolloutConfig, TransformersEngineConfig
from roll_launch.failures import RoleDied
from roll_launch.local_runtime import LocalActor, LocalRuntime
from roll_launch.role_group import RoleGroup
from roll_launch.roles import (
    Actor,
    ActorSpec,
    ModelSpec,
    PublishedWeights,
    ScoredRollout,
    Trainer,
    TrainerSpec,
)
from roll_launch.tasks.sort_letters import write_files
from roll_launch.waits import WaitExpired, Waits
from roll_launch.weight_sync import (
    QUANTISED_TOLERANCE,
    TOLERANCE,
    WeightSync,
    WeightSyncError,
    tolerance_of,
)
from roll_learners.algorithm import make_algorithm
from roll_rollout import (
    GenerateRequest,
    SamplingParams,
    WeightReceipt,
    WeightUpdate,
    pack_buckets,
)
from roll_rollout.sync import Publication

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
}
PROMPT = np.array([5, 7, 3, 9], dtype=np.int32)
Bend = Callable[[WeightUpdate], WeightUpdate]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sort_letters")
    write_files(directory, seed=0, demonstrations=1, train=2, heldout=1)
    return directory / "tokenizer"


@pytest.fixture(params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tokenizer: Path) -> ModelSpec:
    return ModelSpec(
        path=None, architecture="qwen3", overrides=TINY, tokenizer=tokenizer, dtype=request.param, seed=0
    )


@pytest.fixture
async def runtime() -> AsyncIterator[LocalRuntime]:
    made = LocalRuntime()
    yield made
    await made.close()


@pytest.fixture
async def trainer(runtime: LocalRuntime, model: ModelSpec) -> Trainer:
    learner = PolicyLearnerConfig.model_validate({"optimizer": {"learning_rate": 0.05}})
    return await runtime.start_trainer(
        TrainerSpec(
            model=model,
            learner=learner,
            algorithm=make_algorithm("grpo"),
            temperature=0.7,
            optimizer_steps=10,
            seed=0,
            threads=1,
        )
    )


@pytest.fixture
def actor(runtime: LocalRuntime, model: ModelSpec) -> Callable[[str], object]:
    """Starts a replica, with weights that are not the trainer's until they are synced."""

    async def start(name: str) -> LocalActor:
        spec = ActorSpec(
            model=replace(model, seed=99), engine=TransformersEngineConfig(), max_context=64, threads=1
        )
        made = await runtime.start_actor(name, spec)
        assert isinstance(made, LocalActor)
        return made

    return start


class _Bent:
    """A replica to which something else arrives than was sent, or that answers something else."""

    def __init__(
        self,
        actor: LocalActor,
        bend: Bend = lambda update: update,
        receipt: Callable[[WeightReceipt], WeightReceipt] = lambda receipt: receipt,
        *,
        loads: bool = True,
    ) -> None:
        self._actor = actor
        self._bend = bend
        self._receipt = receipt
        self._loads = loads
        self.generate, self.pulse, self.abort = actor.generate, actor.pulse, actor.abort

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        assert isinstance(published.update, Publication)
        assert isinstance(published.update.handle, WeightUpdate)
        if not self._loads:
            return WeightReceipt(version=published.version, checksum=published.checksum)
        arrived = replace(published, update=self._bend(published.update.handle))
        return self._receipt(await self._actor.update_weights(arrived))


def _sync(trainer: Trainer, actors: Mapping[str, object], model: ModelSpec, **options) -> WeightSync:
    async def never(name: str) -> Actor:
        raise AssertionError("nothing is replaced here")

    group = RoleGroup(
        "rollout actor",
        start=never,
        health=HealthConfig(),
        waits=Waits(),
        start_deadline_s=5,
    )
    group.live = dict(actors)  # type: ignore[arg-type]
    settings = {"tolerance": TOLERANCE[model.dtype], "deadline_s": 30.0, **options}
    return WeightSync(trainer, group, probe_ids=PROMPT, temperature=0.7, waits=Waits(), **settings)


async def _train(trainer: Trainer, actor: LocalActor, model: ModelSpec) -> None:
    """One update that is larger than zero."""
    requests = [
        GenerateRequest(id=f"t{i}", prompt_ids=PROMPT, seed=i, sampling=SamplingParams(max_tokens=8))
        for i in range(4)
    ]
    rollouts = [await actor.generate(request) for request in requests]
    await trainer.policy_step(
        [
            ScoredRollout(completion=each.completion, reward=float(i), group=0)
            for i, each in enumerate(rollouts)
        ]
    )


def _flip_a_byte(update: WeightUpdate) -> WeightUpdate:
    first = update.buckets[0]
    payload = first.payload.copy()
    payload[len(payload) // 2] ^= 1
    return replace(update, buckets=(replace(first, payload=payload), *update.buckets[1:]))


def _copied(update: WeightUpdate) -> WeightUpdate:
    """The update as it is now: what is published in one process are views of the live weights."""
    buckets = tuple(replace(each, payload=each.payload.copy()) for each in update.buckets)
    return replace(update, buckets=buckets, lent=False)


def _in_two(update: WeightUpdate) -> tuple[WeightUpdate, WeightUpdate]:
    """The tensors of an update, dealt to two."""
    tensors = [tensor for bucket in update.buckets for tensor in bucket.tensors()]
    halves = (tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :])
    first, second = (replace(update, buckets=tuple(pack_buckets(half, max_bytes=1 << 20))) for half in halves)
    return first, second


def test_an_engine_that_quantises_may_differ_by_more_unless_a_tolerance_is_given() -> None:
    def tolerance(engine: dict[str, object], **options: object) -> float:
        rollout = {
            "engine": engine,
            "group_size": 2,
            "prompts_per_step": 2,
            "max_prompt_tokens": 4,
            "sampling": {"max_tokens": 4},
            **options,
        }
        return tolerance_of(RolloutConfig.model_validate(rollout), "bfloat16")

    assert tolerance({"kind": "transformers"}) == TOLERANCE["bfloat16"]
    fp8 = {"kind": "vllm", "options": {"quantization": "fp8"}}
    assert tolerance(fp8) == QUANTISED_TOLERANCE
    assert tolerance(fp8, sync_tolerance=0.01) == 0.01


async def test_every_replica_samples_with_the_published_weights(trainer, actor, model) -> None:
    actors = {name: await actor(name) for name in ("actor-0", "actor-1")}
    sync = _sync(trainer, actors, model)
    first = await sync.publish(0)
    await _train(trainer, actors["actor-0"], model)
    second = await sync.publish(1, weights_changed=True)
    for metrics in (first, second):
        assert metrics["weight_sync/replicas"] == 2
        assert metrics["weight_sync/probe_diff"] <= TOLERANCE[model.dtype] / 3
    rollout = await actors["actor-1"].generate(
        GenerateRequest(id="after", prompt_ids=PROMPT, seed=1, sampling=SamplingParams(max_tokens=4))
    )
    assert rollout.oldest_version == 1


async def test_a_flipped_byte_is_refused_and_names_replica_tensor_and_version(trainer, actor, model) -> None:
    bent = _Bent(await actor("actor-1"))
    sync = _sync(trainer, {"actor-0": await actor("actor-0"), "actor-1": bent}, model)
    await sync.publish(2)
    bent._bend = _flip_a_byte
    said = r"actor-1 did not load version 3 and still holds version 2: .*tensor '.*' arrived with other bytes"
    with pytest.RaisesGroup(pytest.RaisesExc(WeightSyncError, match=said)):
        await sync.publish(3)


async def test_a_flipped_byte_that_no_engine_looked_for_shows_in_the_receipt(trainer, actor, model) -> None:
    def unseen(update: WeightUpdate) -> WeightUpdate:
        return replace(_flip_a_byte(update), expected={})

    actors = {"actor-0": await actor("actor-0"), "actor-1": _Bent(await actor("actor-1"), unseen)}
    with pytest.RaisesGroup(pytest.RaisesExc(WeightSyncError, match=r"actor-1 acknowledged .* checksum")):
        await _sync(trainer, actors, model).publish(3)


async def test_a_dropped_bucket_is_refused_by_the_engine_which_keeps_its_weights(
    trainer, actor, model
) -> None:
    replica = await actor("actor-0")
    await _sync(trainer, {"actor-0": replica}, model).publish(0)
    bent = _Bent(replica, lambda update: _in_two(update)[0])
    with pytest.RaisesGroup(pytest.RaisesExc(WeightSyncError, match="missing")):
        await _sync(trainer, {"actor-0": bent}, model).publish(1)
    rollout = await replica.generate(
        GenerateRequest(id="after", prompt_ids=PROMPT, seed=1, sampling=SamplingParams(max_tokens=4))
    )
    assert rollout.oldest_version == 0


async def test_a_doubled_bucket_is_refused(trainer, actor, model) -> None:
    def double(update: WeightUpdate) -> WeightUpdate:
        return replace(update, buckets=(*update.buckets, _in_two(update)[1].buckets[0]))

    with pytest.RaisesGroup(pytest.RaisesExc(WeightSyncError, match="duplicated")):
        await _sync(trainer, {"actor-0": _Bent(await actor("actor-0"), double)}, model).publish(0)


async def test_the_update_of_an_old_version_is_refused(trainer, actor, model) -> None:
    kept: list[WeightUpdate] = []

    def old(update: WeightUpdate) -> WeightUpdate:
        kept.append(_copied(update))
        return kept[0]

    replica = await actor("actor-0")
    sync = _sync(trainer, {"actor-0": _Bent(replica, old)}, model)
    await sync.publish(0)
    await _train(trainer, replica, model)
    with pytest.RaisesGroup(
        pytest.RaisesExc(WeightSyncError, match=r"acknowledged version 0 .* published was version 1")
    ):
        await sync.publish(1, weights_changed=True)


async def test_old_bytes_under_a_new_version_are_refused(trainer, actor, model) -> None:
    kept: list[WeightUpdate] = []

    def old_bytes(update: WeightUpdate) -> WeightUpdate:
        kept.append(_copied(update))
        return replace(kept[0], version=update.version)

    replica = await actor("actor-0")
    sync = _sync(trainer, {"actor-0": _Bent(replica, old_bytes)}, model)
    await sync.publish(0)
    await _train(trainer, replica, model)
    with pytest.RaisesGroup(pytest.RaisesExc(WeightSyncError, match="checksum")):
        await sync.publish(1, weights_changed=True)


async def test_a_replica_that_acknowledges_what_it_did_not_load_is_found_by_the_probe(
    trainer, actor, model
) -> None:
    liar = _Bent(await actor("actor-0"), loads=False)
    with pytest.RaisesGroup(
        pytest.RaisesExc(WeightSyncError, match=r"log-probs are not those of the learner.*sync_tolerance")
    ):
        await _sync(trainer, {"actor-0": liar}, model, tolerance=1e-3).publish(0)


async def test_an_update_that_never_reaches_the_export_is_an_error(trainer, actor, model) -> None:
    sync = _sync(trainer, {"actor-0": await actor("actor-0")}, model)
    await sync.publish(0)
    with pytest.raises(WeightSyncError, match="bytes of the version before"):
        await sync.publish(1, weights_changed=True)


async def test_unchanged_weights_are_fine_when_nothing_was_updated(trainer, actor, model) -> None:
    sync = _sync(trainer, {"actor-0": await actor("actor-0")}, model)
    await sync.publish(0)
    await sync.publish(1, weights_changed=False)


async def test_a_stalled_sync_ends_at_its_deadline_with_the_names_of_the_silent(
    trainer, actor, model
) -> None:
    class Silent(_Bent):
        async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    actors = {"actor-0": await actor("actor-0"), "actor-1": Silent(await actor("actor-1"))}
    with pytest.raises(WaitExpired, match=r"no receipt from actor-1$"):
        await _sync(trainer, actors, model, deadline_s=2.0).publish(0)


async def test_a_replica_that_dies_is_reported_and_the_others_are_synced(trainer, actor, model) -> None:
    class Dead(_Bent):
        async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
            raise RoleDied("actor-1", "update_weights", "killed")

    actors = {"actor-0": await actor("actor-0"), "actor-1": Dead(await actor("actor-1"))}
    sync = _sync(trainer, actors, model)
    metrics = await sync.publish(0)
    assert metrics["weight_sync/replicas"] == 1
    assert list(sync._actors.live) == ["actor-0"]
    newcomer = await actor("actor-2")
    await sync.bring_up("actor-2", newcomer)
    rollout = await newcomer.generate(
        GenerateRequest(
            id="after", prompt_ids=PROMPT, seed=1, sampling=SamplingParams(max_tokens=4, temperature=0.7)
        )
    )
    assert await trainer.probe(rollout.completion) <= TOLERANCE[model.dtype]


async def test_a_flipped_byte_on_the_way_to_a_replacement_is_refused(trainer, actor, model) -> None:
    sync = _sync(trainer, {"actor-0": await actor("actor-0")}, model)
    await sync.publish(0)
    with pytest.raises(WeightSyncError, match="actor-1"):
        await sync.bring_up("actor-1", _Bent(await actor("actor-1"), _flip_a_byte))


async def test_a_replacement_that_hangs_keeps_the_next_publication_no_longer_than_its_deadline(
    trainer, actor, model
) -> None:
    class Silent(_Bent):
        async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
            await asyncio.Event().wait()
            raise AssertionError

    sync = _sync(trainer, {"actor-0": await actor("actor-0")}, model, deadline_s=2.0)
    await sync.publish(0)
    hanging = asyncio.create_task(sync.bring_up("actor-1", Silent(await actor("actor-1"))))
    await asyncio.sleep(0)
    assert (await sync.publish(1, weights_changed=False))["weight_sync/replicas"] == 1
    with pytest.raises(WaitExpired, match="weights of actor-1"):
        await hanging
