"""Where rows come from, and which columns of them are used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import CallablePath, Count, NonNegative, StageName
from roll_launch.config.section import Finding, Section

Share = Annotated[float, Field(ge=0, le=1)]


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


class DomainConfig(Section):
    """One of the sources of a mixture."""

    name: StageName = Field(description="Letters, digits, _ and -; metrics of the domain carry it.")
    data: DataConfig = Field(description="Its rows.")
    weight: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Share of the prompts, relative to the other weights."
    )
    least: NonNegative = Field(default=0, description="Prompts of it in each step, at least.")
    most: Count | None = Field(default=None, description="Prompts of it in each step, at most; null for any.")


class MixtureData(Section):
    """Several sources, evenly interleaved in fixed proportions."""

    source: Literal["mixture"] = Field(description="Several sources at once.")
    domains: tuple[DomainConfig, ...] = Field(description="At least one.")

    def findings(self) -> Iterator[Finding]:
        if not self.domains:
            yield Finding(path=("domains",), message="has no domain", allowed="at least one")
        names = [domain.name for domain in self.domains]
        for index, domain in enumerate(self.domains):
            if domain.name in names[:index]:
                yield Finding(
                    path=("domains", index, "name"), message="names two domains alike", got=domain.name
                )
            if domain.most is not None and domain.most < domain.least:
                yield Finding(
                    path=("domains", index, "most"),
                    message="below least",
                    got=f"{domain.most}",
                    allowed=f"int >= {domain.least}",
                )


PromptDataConfig: TypeAlias = Annotated[
    JsonlData | ParquetData | HfData | ReasoningGymData | PythonData | MixtureData,
    Field(discriminator="source"),
]


class CurriculumConfig(Section):
    """Prompts are drawn by how often they were answered right, instead of epoch after epoch.

    The rate of a prompt is its mean score, cut to 0 to 1, in which older results fade.
    """

    low: Share = Field(default=0.1, description="Rate below which a prompt is too hard for now.")
    high: Share = Field(default=0.9, description="Rate above which it is too easy.")
    explore: Share = Field(
        default=0.1, description="Share of the draws for prompts never tried or outside of the band."
    )
    fade: Share = Field(default=0.5, description="What older results count for when a new one comes.")

    def findings(self) -> Iterator[Finding]:
        if self.low > self.high:
            yield Finding(
                path=("low",), message="above high", got=f"{self.low}", allowed=f"at most {self.high}"
            )
