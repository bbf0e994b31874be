"""Where rows come from, and which columns of them are used."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import CallablePath, Count, NonNegative
from roll_launch.config.section import Section


class Columns(Section):
    """Names of columns, for rows whose columns are not called what they usually are."""

    prompt: str | None = Field(
        default=None,
        description="Column of the prompt as text; null finds it by its usual names.",
        json_schema_extra={"also": ["input_key", "prompt_key"]},
    )
    messages: str | None = Field(
        default=None,
        description="Column of the prompt as a list of chat messages; null finds it by its usual names.",
    )
    response: str | None = Field(
        default=None, description="Column of the response to imitate (sft); null finds it by its usual names."
    )
    reference: str | None = Field(
        default=None,
        description="Column of what graders compare with (rlvr); null finds it by its usual names.",
        json_schema_extra={"also": ["label_key", "ground_truth", "answer"]},
    )
    limit: Count | None = Field(
        default=None,
        description="Use only so many rows, from the first.",
        json_schema_extra={"also": ["max_samples"]},
    )


class JsonlData(Columns):
    """JSON lines: one row a line."""

    source: Literal["jsonl"] = Field(description="A file of JSON lines.")
    path: Path = Field(description="The file.", json_schema_extra={"also": ["file", "train_files"]})


class ParquetData(Columns):
    """A Parquet file."""

    source: Literal["parquet"] = Field(description="A Parquet file.")
    path: Path = Field(description="The file.", json_schema_extra={"also": ["file", "train_files"]})


class HfData(Columns):
    """A data set of the Hugging Face `datasets` library (extra `datasets`)."""

    source: Literal["hf"] = Field(description="A Hugging Face data set.")
    name: str = Field(
        description="Its name on the hub, or a directory.", json_schema_extra={"also": ["dataset_name"]}
    )
    config: str | None = Field(default=None, description="Its configuration, where it has several.")
    split: str = Field(description="Such as train.")


class ReasoningGymData(Section):
    """Puzzles that reasoning-gym generates (extra `reasoning-gym`)."""

    source: Literal["reasoning_gym"] = Field(description="A task of reasoning-gym.")
    task: str = Field(description="Its name, such as chain_sum.")
    size: Count = Field(description="Number of puzzles.")
    seed: NonNegative = Field(description="Of the puzzles; give training and evaluation different ones.")
    options: dict[str, Any] = Field(default_factory=dict, description="Of the task, such as min_terms.")


class PythonData(Columns):
    """Rows that a function returns."""

    source: Literal["python"] = Field(description="A function that returns rows.")
    callable: CallablePath = Field(description="`package.module:function`; returns an iterable of mappings.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")


DataConfig: TypeAlias = Annotated[
    JsonlData | ParquetData | HfData | ReasoningGymData | PythonData, Field(discriminator="source")
]
