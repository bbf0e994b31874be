"""Weight sync: nothing trains on unless every replica acknowledged the published bytes."""

import asyncio
from dataclasses import replace

import pytest
from roll_launch.dry_run import DryTrainer
from roll_launch.local_runtime import LocalActor
from roll_launch.roles import PublishedWeights
from roll_launch.waits import WaitExpired, Waits
from roll_launch.weight_sync import WeightSync, WeightSyncError
from roll_rollout import ScriptedEngine, WeightReceipt


def _actor() -> LocalActor:
    return LocalActor(ScriptedEngine(respond=lambda request: [1]))


class _Replica(LocalActor):
    """An actor whose receipt is bent by `bend`."""

    def __init__(self, bend) -> None:
        super().__init__(ScriptedEngine(respond=lambda request: [1]))
        self._bend = bend

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        return self._bend(await super().update_weights(published))


async def test_every_replica_receives_the_version() -> None:
    trainer, actors = DryTrainer(), {"actor-0": _actor(), "actor-1": _actor()}
    sync = WeightSync(trainer, actors, waits=Waits(), deadline_s=5)
    await sync.publish(0)
    await trainer.policy_step([])
    await sync.publish(1, weights_changed=True)


@pytest.mark.parametrize(
    "bend",
    [
        lambda receipt: replace(receipt, checksum="0"),
        lambda receipt: replace(receipt, version=receipt.version - 1),
    ],
    ids=["another checksum", "an old version"],
)
async def test_a_wrong_receipt_stops_the_run_and_names_the_replica(bend) -> None:
    sync = WeightSync(
        DryTrainer(), {"actor-0": _actor(), "actor-1": _Replica(bend)}, waits=Waits(), deadline_s=5
    )
    with pytest.RaisesGroup(pytest.RaisesExc(WeightSyncError, match="actor-1")):
        await sync.publish(3)


async def test_an_update_that_never_reaches_the_export_is_an_error() -> None:
    sync = WeightSync(DryTrainer(), {"actor-0": _actor()}, waits=Waits(), deadline_s=5)
    await sync.publish(0)
    with pytest.raises(WeightSyncError, match="bytes of the version before"):
        await sync.publish(1, weights_changed=True)


async def test_unchanged_weights_are_fine_when_nothing_was_updated() -> None:
    sync = WeightSync(DryTrainer(), {"actor-0": _actor()}, waits=Waits(), deadline_s=5)
    await sync.publish(0)
    await sync.publish(1, weights_changed=False)


async def test_a_stalled_sync_ends_at_its_deadline_with_the_names_of_the_silent() -> None:
    class Silent(LocalActor):
        async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    silent = Silent(ScriptedEngine(respond=lambda request: [1]))
    sync = WeightSync(DryTrainer(), {"actor-0": _actor(), "actor-1": silent}, waits=Waits(), deadline_s=0.2)
    with pytest.raises(WaitExpired, match=r"no receipt from actor-1$"):
        await sync.publish(0)
