"""Broadcast: a member that does not come, dies or stalls is named, and the others have their weights."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from roll_rollout import EngineLibraryError
from roll_rollout.sync import Arrival, BroadcastReceiver, BroadcastSender, Publication, SyncError
from roll_rollout.sync.group import TorchGroup, host_address
from roll_rollout.weights import checked_checksum
from transports_of_tests import broadcast_replica, tensors, whole

LARGE = 200_000


def sender(*names: str, **options: Any) -> BroadcastSender:
    settings = {"bucket_bytes": 50_000, "join_s": 2.0, "session_s": 20.0, **options}
    return BroadcastSender(receivers=names, address="127.0.0.1", **settings)


def together(
    receivers: list[BroadcastReceiver], publication: Publication, seconds: float = 20
) -> list[Arrival]:
    with ThreadPoolExecutor(len(receivers)) as pool:
        asked = [pool.submit(each.fetch, publication, deadline_s=seconds) for each in receivers]
        return [each.result() for each in asked]


def expect(arrivals: list[Arrival], publication: Publication) -> None:
    for arrival in arrivals:
        assert checked_checksum(whole(arrival)) == publication.checksum


class Broken(TorchGroup):
    """A group of a member that is gone after some broadcasts; the last bucket never reaches it."""

    def __init__(self, *arguments: Any, after: int, gone: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._left, self._gone = after, gone

    def broadcast(self, data: np.ndarray) -> None:
        self._left -= 1
        if self._left < 0:
            self._gone()
        super().broadcast(data)


def test_one_group_serves_version_after_version() -> None:
    opened: list[int] = []

    def counted(*arguments: Any, **options: Any) -> TorchGroup:
        opened.append(options["rank"])
        return TorchGroup(*arguments, **options)

    source = sender("a", "b", "c", open_group=counted)
    receivers = [BroadcastReceiver(name, open_group=counted) for name in "abc"]
    for version in range(4):
        published = source.publish(tensors(version, large=LARGE), version=version)
        expect(together(receivers, published), published)
    assert sorted(opened) == [0, 1, 2, 3]
    assert source.missing == ()
    source.close()


def test_a_receiver_that_does_not_come_is_named_and_the_others_go_on() -> None:
    source = sender("a", "b", join_s=0.5)
    published = source.publish(tensors(large=LARGE), version=1)
    expect(together([BroadcastReceiver("a")], published), published)
    assert source.missing == ("b",)
    # Late is not too late.
    expect(together([BroadcastReceiver("b")], published), published)
    source.close()


def test_whoever_waits_in_vain_is_told_for_whom() -> None:
    source = sender("a", "b", "c", join_s=30)
    published = source.publish(tensors(), version=6)
    with pytest.raises(SyncError, match="version 6: no session within the deadline; awaited are b, c"):
        BroadcastReceiver("a").fetch(published, deadline_s=0.5)
    source.close()


def test_a_member_that_dies_in_the_middle_is_left_behind_and_its_replacement_is_served() -> None:
    class Dead(Exception):
        pass

    def die() -> None:
        raise Dead

    def dying(*arguments: Any, **options: Any) -> TorchGroup:
        return Broken(*arguments, after=4, gone=die, **options)

    source = sender("a", "b", "c", join_s=1.0)
    survivors = [BroadcastReceiver("a"), BroadcastReceiver("b")]
    victim = BroadcastReceiver("c", open_group=dying)
    first = source.publish(tensors(large=LARGE), version=1)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(each.fetch, first, deadline_s=20) for each in survivors]
        lost = pool.submit(victim.fetch, first, deadline_s=20)
        with pytest.raises(Dead):
            lost.result()
        victim.close()
        expect([each.result() for each in asked], first)
    assert source.missing == ("c",)
    replacement = BroadcastReceiver("c")
    expect(together([replacement], first), first)
    second = source.publish(tensors(1, large=LARGE), version=2)
    expect(together([*survivors, replacement], second), second)
    assert source.missing == ()
    source.close()


def test_a_sender_that_is_gone_ends_a_fetch_at_its_deadline() -> None:
    source = sender("a")
    published = source.publish(tensors(), version=1)
    source.close()
    with pytest.raises(SyncError, match=r"version 1"):
        BroadcastReceiver("a").fetch(published, deadline_s=1.0)


def test_a_newer_version_takes_the_place_of_one_that_nobody_fetched() -> None:
    source = sender("a")
    source.publish(tensors(), version=1)
    published = source.publish(tensors(1), version=2)
    expect(together([BroadcastReceiver("a")], published), published)
    source.close()


def test_back_ends_that_are_not_there_are_named() -> None:
    with pytest.raises(SyncError, match="backend is 'mpi'"):
        sender("a", backend="mpi")
    with pytest.raises(EngineLibraryError, match="hccl needs torch_npu"):
        TorchGroup("hccl", None, rank=0, size=1, address=None, timeout_s=1)


def test_the_address_of_this_host_is_one() -> None:
    assert host_address().count(".") == 3


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stalled"])
def test_processes_of_which_one_is_killed_or_stalls_in_the_middle(fault: signal.Signals) -> None:
    context = multiprocessing.get_context("spawn")
    names = ("a", "b", "c")
    source = sender(*names, join_s=8.0, session_s=120.0, bucket_bytes=100_000)

    def start(name: str) -> tuple[Any, Connection]:
        here, there = context.Pipe()
        process = context.Process(target=broadcast_replica, args=(name, there), daemon=True)
        process.start()
        return process, here

    replicas = {name: start(name) for name in names}
    try:
        warm = source.publish(tensors(), version=0)
        for _, pipe in replicas.values():
            pipe.send(warm)
        assert all(pipe.recv() == warm.checksum for _, pipe in replicas.values())
        published = source.publish(tensors(large=12_000_000), version=1)
        for _, pipe in replicas.values():
            pipe.send(published)
        time.sleep(0.05)
        os.kill(replicas["b"][0].pid, fault)
        for name in "ac":
            assert replicas[name][1].poll(100)
            assert replicas[name][1].recv() == published.checksum
        assert source.missing == ("b",)
        os.kill(replicas["b"][0].pid, signal.SIGKILL)
        replicas["b"] = start("b")
        replicas["b"][1].send(published)
        assert replicas["b"][1].poll(100)
        assert replicas["b"][1].recv() == published.checksum
    finally:
        for process, _ in replicas.values():
            process.kill()
            process.join()
        source.close()
