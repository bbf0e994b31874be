"""What holds of all transports: exact bytes, a checksum, errors that name what is wrong, adapters."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from roll_rollout import (
    AdapterConfig,
    AdapterUpdate,
    ScriptedEngine,
    TensorSpec,
    UnsupportedRequest,
    WeightBucket,
    WeightMismatch,
    WeightReceipt,
)
from roll_rollout.sync import AdapterHeader, Publication, SyncError, load_arrival
from roll_rollout.weights import TensorBytes, checked_checksum, weights_checksum
from transports_of_tests import Transport, found, tensors, whole

CONFIG = AdapterConfig(rank=2, alpha=4.0, target_modules=("q_proj",), rank_stabilised=True)
SPECS = [TensorSpec(names=(name,), dtype=dtype, shape=shape) for name, dtype, shape, _ in tensors()]


def adapter_tensors() -> list[TensorBytes]:
    prefix = "base_model.model.layers.0.q_proj"
    ones = np.ones(8, np.float32).view(np.uint8)
    return [
        (f"{prefix}.lora_A.weight", "float32", (2, 4), ones),
        (f"{prefix}.lora_B.weight", "float32", (4, 2), ones * 2),
    ]


def test_exact_bytes_of_each_version_arrive_at_every_receiver(transport: Transport) -> None:
    for version in range(6):
        sent = tensors(version // 2)
        published = transport.sender.publish(iter(sent), version=version)
        for arrival in transport.fetch(published):
            assert found(arrival) == {
                name: (dtype, shape, data.tobytes()) for name, dtype, shape, data in sent
            }
            assert arrival.version == version
            assert weights_checksum(arrival.buckets) == published.checksum
            assert checked_checksum(whole(arrival)) == published.checksum
        assert published.size == sum(data.size for *_, data in sent)
        for receiver in transport.receivers:
            receiver.release(published)


def test_an_engine_acknowledges_what_arrived(transport: Transport) -> None:
    published = transport.sender.publish(tensors(), version=7)
    for arrival in transport.fetch(published):
        engine = ScriptedEngine(respond=lambda request: [1], specs=SPECS)
        receipt = asyncio.run(load_arrival(engine, arrival))
        assert receipt == WeightReceipt(version=7, checksum=published.checksum)


def test_an_adapter_arrives_as_one_and_weights_may_follow(transport: Transport) -> None:
    header = AdapterHeader(name="policy", config=CONFIG)
    published = transport.sender.publish(adapter_tensors(), version=3, adapter=header)
    for arrival in transport.fetch(published):
        assert isinstance(arrival, AdapterUpdate)
        assert (arrival.name, arrival.version, arrival.config) == ("policy", 3, CONFIG)
        assert weights_checksum(arrival.buckets) == published.checksum
        with pytest.raises(UnsupportedRequest, match="'policy': ScriptedEngine takes no adapters"):
            asyncio.run(load_arrival(ScriptedEngine(respond=lambda request: [1]), arrival))
    published = transport.sender.publish(tensors(), version=4)
    assert all(whole(each).version == 4 for each in transport.fetch(published))


def test_a_tensor_that_comes_twice_is_named_and_the_next_publication_works(transport: Transport) -> None:
    twice = [*tensors(), tensors()[0]]
    with pytest.raises(WeightMismatch, match=r"'norm\.weight' is duplicated"):
        transport.sender.publish(twice, version=1)
    published = transport.sender.publish(tensors(1), version=2)
    assert all(whole(each).version == 2 for each in transport.fetch(published))


def test_bytes_that_do_not_fit_their_shape_are_named(transport: Transport) -> None:
    wrong = [("norm.weight", "float32", (7,), np.zeros(24, np.uint8))]
    with pytest.raises(WeightMismatch, match="24 bytes"):
        transport.sender.publish(wrong, version=1)
    with pytest.raises(WeightMismatch, match="complex64"):
        transport.sender.publish([("z", "complex64", (1,), np.zeros(8, np.uint8))], version=1)


def test_a_learner_that_fails_half_way_publishes_nothing(transport: Transport) -> None:
    def failing() -> Iterator[TensorBytes]:
        yield from tensors()[:2]
        raise RuntimeError("a shard is gone")

    with pytest.raises(RuntimeError, match="a shard is gone"):
        transport.sender.publish(failing(), version=1)
    published = transport.sender.publish(tensors(1), version=2)
    assert all(checked_checksum(whole(each)) == published.checksum for each in transport.fetch(published))


def test_another_transports_publication_is_refused(transport: Transport) -> None:
    other = Publication(version=1, checksum="", size=0, transport="pigeon", handle=None)
    with pytest.raises(SyncError, match="through 'pigeon'"):
        transport.receivers[0].fetch(other, deadline_s=1)


def test_a_changed_byte_in_what_arrived_is_refused_by_the_engine_with_the_tensors_name(
    transport: Transport,
) -> None:
    published = transport.sender.publish(tensors(), version=5)
    arrival = whole(transport.fetch(published)[0])
    buckets = list(arrival.buckets)
    (name,) = buckets[1].names
    payload = buckets[1].payload.copy()
    payload[3] ^= 4
    buckets[1] = WeightBucket(
        names=(name,), dtypes=buckets[1].dtypes, shapes=buckets[1].shapes, payload=payload
    )
    engine = ScriptedEngine(respond=lambda request: [1], specs=SPECS, version=2)
    with pytest.raises(WeightMismatch, match=rf"version 5: tensor '{name}' arrived with other bytes"):
        asyncio.run(engine.update_weights(replace(arrival, buckets=tuple(buckets))))


def test_closing_twice_is_fine(transport: Transport) -> None:
    transport.sender.publish(tensors(), version=1)
    for _ in range(2):
        transport.sender.close()
        transport.receivers[0].close()
