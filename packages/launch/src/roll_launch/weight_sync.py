"""Weights from the trainer to every replica, with a receipt from each."""

import asyncio
from collections.abc import Mapping

from roll_launch.errors import RollLaunchError
from roll_launch.roles import Actor, PublishedWeights, Trainer
from roll_launch.waits import Waits


class WeightSyncError(RollLaunchError):
    """A replica does not hold the weights that the trainer published."""


class WeightSync:
    """Publishes policy versions.

    Args:
        trainer: Where the weights are trained.
        actors: The replicas, by name.
        waits: Of the run.
        deadline_s: Seconds that one publication may take.
    """

    def __init__(
        self, trainer: Trainer, actors: Mapping[str, Actor], *, waits: Waits, deadline_s: float
    ) -> None:
        self._trainer = trainer
        self._actors = actors
        self._waits = waits
        self._deadline_s = deadline_s
        self._checksum: str | None = None

    async def publish(self, version: int, *, weights_changed: bool | None = None) -> None:
        """Brings `version` to every replica and checks what each received.

        Args:
            version: Rises by one with each publication.
            weights_changed: Whether an update since the last publication was larger than zero; None if
                unknown.

        Raises:
            WeightSyncError: A receipt names another version or other bytes, or the exported bytes did not
                change although an update was applied.
            WaitExpired: Somebody did not answer in time; names who.
        """
        silent = set(self._actors)
        exported = False
        async with self._waits.wait(
            f"weight sync to version {version}",
            deadline_s=self._deadline_s,
            pending=lambda: (
                "no receipt from " + ", ".join(sorted(silent)) if exported else "no export from trainer"
            ),
        ):
            published = await self._trainer.publish(version)
            exported = True
            self._refuse_stuck_export(published, weights_changed)
            async with asyncio.TaskGroup() as group:
                for name in self._actors:
                    group.create_task(self._deliver(name, published, silent))
        self._checksum = published.checksum

    async def _deliver(self, name: str, published: PublishedWeights, silent: set[str]) -> None:
        receipt = await self._actors[name].update_weights(published)
        if (receipt.version, receipt.checksum) != (published.version, published.checksum):
            raise WeightSyncError(
                f"{name} acknowledged version {receipt.version} with checksum {receipt.checksum}; "
                f"published was version {published.version} with checksum {published.checksum}"
            )
        silent.discard(name)

    def _refuse_stuck_export(self, published: PublishedWeights, weights_changed: bool | None) -> None:
        if weights_changed and published.checksum == self._checksum:
            raise WeightSyncError(
                f"version {published.version} has the bytes of the version before it (checksum "
                f"{published.checksum}), although an update larger than zero was applied"
            )
