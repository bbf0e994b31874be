"""A configuration's transport becomes a sender and a receiver that fit, and bad choices are named."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter
from roll_launch.config import ConfigError, WeightSyncConfig, load_config
from roll_launch.local_runtime import LocalActor
from roll_launch.replica import Replica
from roll_launch.roles import PublishedWeights
from roll_launch.transports import SyncSpec, chosen, make_receiver, make_sender
from roll_rollout import (
    AdapterConfig,
    AdapterUpdate,
    Completion,
    GenerateRequest,
    SamplingParams,
    ScriptedEngine,
    WeightReceipt,
    WeightUpdate,
)
from roll_rollout.sync import AdapterHeader, SyncError
from roll_rollout.weights import weights_checksum

TENSORS = [("w", "float32", (3,), np.arange(12, dtype=np.uint8))]


class Shelf:
    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []

    def put(self, data: np.ndarray) -> object:
        self.kept.append(data.copy())
        return len(self.kept) - 1

    def get(self, references, *, deadline_s: float) -> list[np.ndarray]:
        return [self.kept[each] for each in references]


def spec(**config: object) -> SyncSpec:
    made = TypeAdapter(WeightSyncConfig).validate_python(config)
    return SyncSpec(config=made, receivers=("actor-0",), deadline_s=20)


@pytest.mark.parametrize(
    ("runtime", "hosts", "transport"),
    [("local", 1, "in_process"), ("ray", 1, "shared_memory"), ("ray", 2, "object_store")],
)
def test_auto_is_what_fits_and_anything_else_stays(runtime: str, hosts: int, transport: str) -> None:
    auto = spec(transport="auto", payload="adapter")
    found = chosen(auto, runtime=runtime, hosts=hosts).config
    assert (found.transport, found.payload) == (transport, "adapter")
    directory = spec(transport="directory", path=Path("weights"))
    assert chosen(directory, runtime=runtime, hosts=hosts) is directory


@pytest.mark.parametrize(
    "config",
    [
        {"transport": "auto"},
        {"transport": "in_process", "share": True},
        {"transport": "shared_memory"},
        {"transport": "shared_memory", "share": False, "delta": {}},
        {"transport": "object_store", "bucket_mb": 1},
        {"transport": "object_store", "delta": {"full_every": 2, "level": 0}},
        {"transport": "directory", "path": Path("weights")},
        {"transport": "directory", "path": Path("weights"), "delta": {}},
        {"transport": "broadcast", "address": "127.0.0.1", "join_s": 10.0},
    ],
    ids=lambda config: "-".join([config["transport"], *(key for key in config if key in ("share", "delta"))]),
)
async def test_a_replica_gets_what_the_trainer_published(
    config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shelf, made = Shelf(), spec(**config)
    sender = make_sender(made, store=shelf)
    replica = Replica(
        ScriptedEngine(respond=lambda request: [1]),
        make_receiver(made, name="actor-0", store=shelf),
        deadline_s=20,
    )
    for version in range(3):
        published = sender.publish(TENSORS, version=version)
        receipt = await replica.update_weights(published)
        assert receipt == WeightReceipt(version=version, checksum=published.checksum)
    sender.close()


def test_tensors_are_lent_in_one_process_only_to_engines_that_wait_for_the_trainer() -> None:
    def lent(**options: object) -> bool:
        overlapping = bool(options.pop("overlapping", False))
        made = spec(transport="in_process", **options)
        sender = make_sender(SyncSpec(config=made.config, overlapping=overlapping))
        update = sender.publish(TENSORS, version=1).handle
        assert isinstance(update, WeightUpdate)
        return update.lent

    assert lent()
    assert not lent(overlapping=True)
    assert not lent(share=False)
    assert lent(share=True, overlapping=True)


def test_a_transport_without_its_store_is_refused() -> None:
    for make in (make_sender, lambda made: make_receiver(made, name="actor-0")):
        with pytest.raises(ValueError, match="object_store needs the runtime `ray`"):
            make(spec(transport="object_store"))


async def test_what_is_published_in_one_process_can_be_loaded_behind_any_transport() -> None:
    published = make_sender(spec(transport="auto")).publish(TENSORS, version=4)
    receiver = make_receiver(spec(transport="shared_memory"), name="actor-0")
    actor = LocalActor(ScriptedEngine(respond=lambda request: [1]), receiver)
    weights = PublishedWeights(version=4, checksum=published.checksum, update=published)
    assert (await actor.update_weights(weights)).checksum == published.checksum


async def test_a_replica_whose_publication_is_gone_says_so() -> None:
    made = spec(transport="shared_memory")
    sender = make_sender(made)
    published = sender.publish(TENSORS, version=4)
    sender.close()
    receiver = make_receiver(made, name="actor-0")
    replica = Replica(ScriptedEngine(respond=lambda request: [1]), receiver, deadline_s=5)
    with pytest.raises(SyncError, match="version 4"):
        await replica.update_weights(published)


class _Adapted(ScriptedEngine):
    """Takes adapters, and remembers which requests asked for."""

    def __init__(self) -> None:
        super().__init__(respond=lambda request: [1])
        self.asked: list[str | None] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked.append(request.adapter)
        return await super().generate(
            GenerateRequest(id=request.id, prompt_ids=request.prompt_ids, seed=0, sampling=request.sampling)
        )

    async def load_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def unload_adapter(self, name: str) -> None:
        raise AssertionError

    async def adapters(self) -> dict[str, int]:
        return {}


async def test_after_an_adapter_alone_was_published_everything_is_generated_with_it() -> None:
    made = spec(transport="shared_memory", payload="adapter")
    engine = _Adapted()
    replica = Replica(engine, make_receiver(made, name="actor-0"), deadline_s=5)
    request = GenerateRequest(
        id="1", prompt_ids=np.array([1], np.int32), seed=0, sampling=SamplingParams(max_tokens=1)
    )
    await replica.generate(request, None)
    pair = [(f"m.q_proj.lora_{side}.weight", "float32", (1, 1), np.zeros(4, np.uint8)) for side in "AB"]
    header = AdapterHeader(name="policy", config=AdapterConfig(rank=1, alpha=1.0, target_modules=("q_proj",)))
    published = make_sender(made).publish(pair, version=2, adapter=header)
    receipt = await replica.update_weights(published)
    assert receipt == WeightReceipt(version=2, checksum=published.checksum)
    await replica.generate(request, None)
    assert engine.asked == [None, "policy"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("{transport: broadcast}", "does not work with `runtime: local`"),
        ("{transport: in_process, bucket_mb: 3}", "bucket_mb"),
        ("{transport: pigeon}", "pigeon"),
        ("{transport: shared_memory, payload: adapter}", "the learner trains no adapter"),
        ("{transport: directory}", "path"),
        ("{transport: directory, path: w, delta: {level: 11}}", "level"),
    ],
)
def test_a_bad_choice_is_named_before_anything_starts(lines: str, message: str) -> None:
    overrides = [f"stages.rlvr.rollout.weight_sync={lines}", "runtime={kind: local}"]
    with pytest.raises(ConfigError, match=message):
        load_config(Path(__file__).parents[2] / "examples/quickstart.yaml", overrides)
