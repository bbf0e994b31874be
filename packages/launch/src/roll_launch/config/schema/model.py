"""Where a stage's policy comes from."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import Dtype, StageName
from roll_launch.config.section import Section


class PretrainedModel(Section):
    """A Hugging Face directory on this machine."""

    source: Literal["pretrained"] = Field(description="Weights from a Hugging Face directory.")
    path: Path = Field(
        description="Directory with config.json and safetensors.",
        json_schema_extra={"also": ["model_name_or_path", "pretrain", "hf_checkpoint"]},
    )
    tokenizer: Path | None = Field(
        default=None, description="Directory of the tokenizer; null takes that of `path`."
    )
    dtype: Dtype = Field(
        default="float32", description="Type of the weights.", json_schema_extra={"also": ["torch_dtype"]}
    )


class RandomModel(Section):
    """New weights, drawn from the run's seed."""

    source: Literal["random"] = Field(description="New random weights.")
    architecture: str = Field(
        description="`model_type` of a causal language model in transformers, such as qwen3.",
        json_schema_extra={"also": ["model_type"]},
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Fields of that architecture's configuration, such as hidden_size."
    )
    tokenizer: Path = Field(description="Directory of the tokenizer.")
    dtype: Dtype = Field(
        default="float32", description="Type of the weights.", json_schema_extra={"also": ["torch_dtype"]}
    )


class StageModel(Section):
    """The model that an earlier stage of this run trained."""

    source: Literal["stage"] = Field(description="The model of an earlier stage.")
    stage: StageName = Field(description="Name of that stage.")


ModelConfig: TypeAlias = Annotated[PretrainedModel | RandomModel | StageModel, Field(discriminator="source")]
