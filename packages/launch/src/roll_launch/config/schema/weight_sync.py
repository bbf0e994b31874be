"""How new weights get from the trainer to the engines."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import Count, Seconds
from roll_launch.config.section import Finding, Section

Payload = Literal["weights", "adapter"]


class DeltaConfig(Section):
    """Only the elements that changed are sent, compressed. For weights of which few change in a step.

    Trainer and replicas each hold the weights once more.
    """

    full_every: Count = Field(
        default=20,
        description="Versions after which all weights are sent again; a new replica gets those and what"
        " changed since.",
    )
    level: Annotated[int, Field(ge=0, le=9)] = Field(
        default=1, description="Effort of the compression; 0 sends the changed elements as they are."
    )


class _WeightSync(Section):
    """What all transports have."""

    payload: Payload = Field(
        default="weights",
        description="`weights`: all of them, with adapters merged in; `adapter`: the LoRA adapter alone, of a"
        " learner that trains one, into engines that take adapters.",
    )


class AutoSyncConfig(_WeightSync):
    """Whatever fits: `in_process` without Ray, `shared_memory` with Ray on one host, else `object_store`."""

    transport: Literal["auto"] = Field(default="auto", description="How weights are brought.")


class InProcessSyncConfig(_WeightSync):
    """Engines in the trainer's process. Only without Ray."""

    transport: Literal["in_process"] = Field(description="How weights are brought.")
    share: bool | None = Field(
        default=None,
        description="Engines generate with the trainer's own tensors, without a copy. null does so where they"
        " do not generate while it trains.",
    )


class SharedMemorySyncConfig(_WeightSync):
    """One copy into memory that all processes of a host read."""

    transport: Literal["shared_memory"] = Field(description="How weights are brought.")
    share: bool = Field(
        default=True,
        description="Engines on a CPU generate with the shared memory, so that all of them hold the weights"
        " once; it is twice the size, for the version in use and the next.",
    )
    delta: DeltaConfig | None = Field(default=None, description="Send only what changed; null sends all.")


class ObjectStoreSyncConfig(_WeightSync):
    """Ray's object store, which brings buckets to any host. Only with Ray."""

    transport: Literal["object_store"] = Field(description="How weights are brought.")
    bucket_mb: Count = Field(
        default=256,
        description="MiB of one object; the trainer holds one more of them than its weights.",
        json_schema_extra={"also": ["model_update_buffer_size_mb"]},
    )
    delta: DeltaConfig | None = Field(default=None, description="Send only what changed; null sends all.")


class DirectorySyncConfig(_WeightSync):
    """Safetensors in a directory that trainer and engines see, such as a network file system."""

    transport: Literal["directory"] = Field(description="How weights are brought.")
    path: Path = Field(description="The directory; it belongs to the stage.")
    file_mb: Count = Field(default=256, description="MiB of tensors in one file.")
    delta: DeltaConfig | None = Field(default=None, description="Send only what changed; null sends all.")


class BroadcastSyncConfig(_WeightSync):
    """A process group of the trainer and all replicas, over the network. Only with Ray."""

    transport: Literal["broadcast"] = Field(description="How weights are brought.")
    backend: Literal["gloo", "nccl", "hccl"] = Field(
        default="gloo", description="`gloo` for CPUs, `nccl` for NVIDIA and AMD, `hccl` for Ascend."
    )
    address: str | None = Field(
        default=None,
        description="Address of the trainer's host, by which the replicas reach it; null takes its own name.",
    )
    bucket_mb: Count = Field(default=64, description="MiB that are sent at a time.")
    join_s: Seconds = Field(
        default=30.0,
        description="Seconds that the group waits for a replica before it goes on without it.",
    )


WeightSyncConfig: TypeAlias = Annotated[
    AutoSyncConfig
    | InProcessSyncConfig
    | SharedMemorySyncConfig
    | ObjectStoreSyncConfig
    | DirectorySyncConfig
    | BroadcastSyncConfig,
    Field(discriminator="transport"),
]

ONLY = {"in_process": "local", "object_store": "ray", "broadcast": "ray"}
"""The runtime that a transport needs, where it needs one."""


def sync_findings(runtime: str, stages: Sequence[Section]) -> Iterator[Finding]:
    """What of the stages' `rollout.weight_sync` does not go with the runtime or the learner."""
    for index, stage in enumerate(stages):
        rollout, learner = (stage.__dict__.get(key) for key in ("rollout", "learner"))
        sync = None if rollout is None else rollout.__dict__.get("weight_sync")
        if not isinstance(sync, _WeightSync) or learner is None:
            continue
        path = ("stages", index, "rollout", "weight_sync")
        kind: str = sync.__dict__["transport"]
        if ONLY.get(kind, runtime) != runtime:
            fitting = {
                "auto",
                "shared_memory",
                "directory",
                *(each for each in ONLY if ONLY[each] == runtime),
            }
            yield Finding(
                path=(*path, "transport"),
                message=f"does not work with `runtime: {runtime}`",
                got=kind,
                allowed=", ".join(sorted(fitting)),
            )
        if sync.payload == "adapter" and learner.__dict__.get("lora") is None:
            yield Finding(
                path=(*path, "payload"),
                message="the learner trains no adapter (learner.lora)",
                got="adapter",
                allowed="weights",
            )
