"""What generates: an engine and its own options.

Of those that compute elsewhere the class says what others ask of every engine: how many sequences it is given
at once, that it takes no threads, and whether the weights that are trained reach it (`follows`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import Count, Device, Threads
from roll_launch.config.section import Finding, Section


class TransformersEngineConfig(Section):
    """Batched generation with transformers, in a process of its own."""

    follows: ClassVar[bool] = True
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

    follows: ClassVar[bool] = True
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


class SglangEngineConfig(Section):
    """An SGLang server that was started on the stage's model; new weights reach it through `files`."""

    follows: ClassVar[bool] = True
    threads: ClassVar[None] = None
    kind: Literal["sglang"] = Field(description="The engine.")
    address: str = Field(description="Of the server, such as `http://localhost:30000`.")
    api_key: str | None = Field(default=None, description="Sent as a bearer token.")
    max_batch: Count = Field(default=256, description="Sequences that it is given at once.")
    files: Path | None = Field(
        default=None,
        description="Directory that server and replica see, where weights are written; null takes shared"
        " memory of this machine.",
    )
    deterministic: bool = Field(
        default=False,
        description="Whether it was started with `--enable-deterministic-inference`; else it ignores seeds.",
    )

    def findings(self) -> Iterator[Finding]:
        yield from _address_findings(self.address)


class OpenaiEngineConfig(Section):
    """A server with OpenAI's completions API whose weights stay: another policy than the trained one."""

    follows: ClassVar[bool] = False
    threads: ClassVar[None] = None
    kind: Literal["openai"] = Field(description="The engine.")
    address: str = Field(description="Of the server, such as `http://localhost:8000/v1`.")
    model: str = Field(description="The name that the server knows the model by.")
    api_key: str | None = Field(default=None, description="Sent as a bearer token.")
    logprobs_of: Literal["sampled", "raw"] = Field(
        default="raw",
        description="Of which distribution its log-probs are: `sampled`, after temperature (vLLM with"
        " `--logprobs-mode processed_logprobs`), or `raw`, before it, which serves temperature 1 alone.",
    )
    max_batch: Count = Field(default=256, description="Sequences that it is given at once.")

    def findings(self) -> Iterator[Finding]:
        yield from _address_findings(self.address)


class ReplayEngineConfig(Section):
    """What a run with `rollout.record` generated, once more, without a model: of the same seed and data."""

    follows: ClassVar[bool] = False
    threads: ClassVar[None] = None
    max_batch: ClassVar[int] = 1024
    kind: Literal["replay"] = Field(description="The engine.")
    path: Path = Field(description="A recording, or a directory of them, such as `RUN_DIR/recordings/rlvr`.")


class ScriptedEngineConfig(Section):
    """Tokens that a function chooses, each with log-prob 0: for tests of everything around generation."""

    follows: ClassVar[bool] = False
    threads: ClassVar[None] = None
    max_batch: ClassVar[int] = 1024
    kind: Literal["scripted"] = Field(description="The engine.")
    callable: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="`module:function`; takes a `GenerateRequest` and returns its token ids.",
    )


def _address_findings(address: str) -> Iterator[Finding]:
    if not address.startswith(("http://", "https://")):
        yield Finding(
            path=("address",), message="is no address", got=address, allowed="http://... or https://..."
        )


EngineConfig: TypeAlias = Annotated[
    TransformersEngineConfig
    | VllmEngineConfig
    | SglangEngineConfig
    | OpenaiEngineConfig
    | ReplayEngineConfig
    | ScriptedEngineConfig,
    Field(discriminator="kind"),
]
