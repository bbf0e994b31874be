"""Weights from the trainer to every replica, with a receipt from each and a probe of what arrived."""

import asyncio
from typing import Protocol

import numpy as np
from roll_rollout import EngineError, EngineUnavailable, GenerateRequest, SamplingParams

from roll_launch.config import RolloutConfig, VllmEngineConfig
from roll_launch.errors import RollLaunchError
from roll_launch.failures import RoleDied
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, Handle, PublishedWeights
from roll_launch.waits import Waits, listed

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Greatest |difference| in nats between engine and learner on one token, by dtype of the weights. Rounding
alone gives less; the log-probs of other weights differ by more."""

QUANTISED_TOLERANCE = 1.0
"""The same for an engine that quantises weights when it loads them, whatever their dtype. Set by what the
probe is for, to find other weights, and not measured on a device."""

PROBE_TOKENS = 8


def tolerance_of(rollout: RolloutConfig, dtype: str) -> float:
    """How far log-probs of engine and learner may differ on the probe of a stage, nats.

    Args:
        rollout: Of the stage; its `sync_tolerance` is taken as it is.
        dtype: Of the weights.
    """
    if rollout.sync_tolerance is not None:
        return rollout.sync_tolerance
    quantised = isinstance(rollout.engine, VllmEngineConfig) and rollout.engine.options.get("quantization")
    return QUANTISED_TOLERANCE if quantised else TOLERANCE[dtype]


class WeightSyncError(RollLaunchError):
    """A replica does not hold the weights that the trainer published."""


class Publisher(Protocol):
    """Owns weights that engines generate with; every kind of trainer is one."""

    async def publish(self, version: int) -> PublishedWeights:
        """Exports the present weights as `version`."""
        ...

    async def probe(self, completion: Handle) -> float:
        """How far a completion's log-probs are from those of the present weights."""
        ...


class WeightSync:
    """Publishes policy versions.

    Args:
        trainer: Where the weights are trained.
        actors: The replicas. One that dies meanwhile is reported to them; its replacement goes through
            `bring_up`.
        probe_ids: int32[P], a prompt of the data, continued by each replica after each sync; None of
            engines that generate with weights of their own.
        temperature: Of the stage's sampling, by which the learner divides too.
        tolerance: Of a probe, nats.
        waits: Of the run.
        deadline_s: Seconds that one publication may take.
    """

    def __init__(
        self,
        trainer: Publisher,
        actors: RoleGroup[Actor],
        *,
        probe_ids: np.ndarray | None,
        temperature: float,
        tolerance: float,
        waits: Waits,
        deadline_s: float,
    ) -> None:
        self._trainer = trainer
        self._actors = actors
        self._probe_ids = probe_ids
        self._probe_sampling = SamplingParams(max_tokens=PROBE_TOKENS, temperature=temperature)
        self._tolerance = tolerance
        self._waits = waits
        self._deadline_s = deadline_s
        self._published: PublishedWeights | None = None
        # Version that each replica acknowledged last.
        self._held: dict[str, int] = {}
        # A replacement joins between two publications, never in the middle of one.
        self._turn = asyncio.Lock()

    async def publish(self, version: int, *, weights_changed: bool | None = None) -> dict[str, float]:
        """Brings `version` to every replica and checks what each received.

        Args:
            version: Rises by one with each publication.
            weights_changed: Whether an update since the last publication was larger than zero; None if
                unknown.

        Returns:
            weight_sync/replicas, and weight_sync/probe_diff, the greatest difference that a probe found.

        Raises:
            WeightSyncError: A replica refused the weights, a receipt names another version or other bytes, a
                probe disagrees with the learner, or the exported bytes did not change although an update was
                applied.
            WaitExpired: Somebody did not answer in time; names who.
        """
        async with self._turn:
            silent = set(self._actors.live)
            exported = False
            async with self._waits.wait(
                f"weight sync to version {version}",
                deadline_s=self._deadline_s,
                pending=lambda: "no receipt from " + listed(silent) if exported else "no export from trainer",
            ):
                # Let go of first, so that two copies of the weights are never held.
                before, self._published = self._published, None
                checksum_before = before.checksum if before else None
                del before
                published = await self._trainer.publish(version)
                exported = True
                if weights_changed and published.checksum == checksum_before:
                    raise _stuck(published)
                self._published = published
                async with asyncio.TaskGroup() as group:
                    probes = {
                        name: group.create_task(self._deliver_or_report(name, actor, published, silent))
                        for name, actor in dict(self._actors.live).items()
                    }
        found = [probe.result() for probe in probes.values()]
        differences = [difference for difference in found if difference is not None]
        metrics = {"weight_sync/replicas": float(len(differences))}
        if differences and self._probe_ids is not None:
            metrics["weight_sync/probe_diff"] = max(differences)
        return metrics

    async def bring_up(self, name: str, actor: Actor) -> None:
        """Brings the weights that were published last to a replacement.

        The trainer may be updating them already, so the receipt alone is the proof. One that does not answer
        keeps the next publication waiting no longer than the deadline of a publication.

        Raises:
            WeightSyncError: It refused the weights, or the receipt names another version or other bytes.
            WaitExpired: There was no receipt in time.
        """
        async with self._turn:
            self._held.pop(name, None)
            if self._published is None:
                return
            async with self._waits.wait(f"weights of {name}", deadline_s=self._deadline_s):
                await self._deliver(name, actor, self._published)

    async def _deliver_or_report(
        self, name: str, actor: Actor, published: PublishedWeights, silent: set[str]
    ) -> float | None:
        """The probe's difference; None if the replica died."""
        try:
            await self._deliver(name, actor, published)
            difference = 0.0
            if self._probe_ids is not None:
                difference = await self._probe(name, actor, published.version, self._probe_ids)
        except RoleDied as error:
            if error.role != name:
                raise
            self._held.pop(name, None)
            self._actors.lost(name, actor, str(error))
            return None
        finally:
            silent.discard(name)
        return difference

    async def _deliver(self, name: str, actor: Actor, published: PublishedWeights) -> None:
        held = self._held.get(name)
        try:
            receipt = await actor.update_weights(published)
        except EngineUnavailable:
            raise
        except EngineError as error:
            holds = "still has the weights it started with" if held is None else f"still holds version {held}"
            raise WeightSyncError(
                f"{name} did not load version {published.version} and {holds}: {error}"
            ) from error
        self._held[name] = receipt.version
        if (receipt.version, receipt.checksum) != (published.version, published.checksum):
            raise WeightSyncError(
                f"{name} acknowledged version {receipt.version} with checksum {receipt.checksum}; "
                f"published was version {published.version} with checksum {published.checksum}"
            )

    async def _probe(self, name: str, actor: Actor, version: int, prompt_ids: np.ndarray) -> float:
        """What the replica samples must have the learner's log-probs."""
        rollout = await actor.generate(
            GenerateRequest(
                id=f"probe of version {version}",
                prompt_ids=prompt_ids,
                seed=version,
                sampling=self._probe_sampling,
            )
        )
        difference = await self._trainer.probe(rollout.completion)
        if not difference <= self._tolerance:
            raise WeightSyncError(
                f"{name} acknowledged version {version}, but its log-probs are not those of the learner: "
                f"they differ by {difference:.3g} nats on a probe of {rollout.tokens} tokens, allowed are "
                f"{self._tolerance:g} (rollout.sync_tolerance)"
            )
        return difference


def _stuck(published: PublishedWeights) -> WeightSyncError:
    return WeightSyncError(
        f"version {published.version} has the bytes of the version before it (checksum "
        f"{published.checksum}), although an update larger than zero was applied"
    )
