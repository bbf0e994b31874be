"""What generates: an engine and its own options."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import Count, Device, Threads
from roll_launch.config.section import Section


class TransformersEngineConfig(Section):
    """Batched generation with transformers, in a process of its own."""

    kind: Literal["transformers"] = Field(default="transformers", description="The engine.")
    max_batch: Count = Field(
        default=64,
        description="Sequences that are generated at once.",
        json_schema_extra={"also": ["max_num_seqs"]},
    )
    device: Device = Field(default="cpu", description="`cpu`, or one device such as `cuda:0`.")
    threads: Threads | None = Field(
        default=None, description="CPU threads of a replica; null shares the processors."
    )


class VllmEngineConfig(Section):
    """vLLM, which has to be installed in the environment; it chooses its devices itself."""

    kind: Literal["vllm"] = Field(description="The engine.")
    max_batch: Count = Field(
        default=256,
        description="Sequences that are generated at once.",
        json_schema_extra={"also": ["max_num_seqs"]},
    )
    threads: Threads | None = Field(
        default=None, description="CPU threads of a replica; null shares the processors."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="More of vLLM's `AsyncEngineArgs`, such as `tensor_parallel_size`, `quantization`,"
        " `speculative_config` or `gpu_memory_utilization`.",
    )


EngineConfig: TypeAlias = Annotated[TransformersEngineConfig | VllmEngineConfig, Field(discriminator="kind")]
