"""Reward models as roles of a stage: where they run, and which graders ask them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from roll_launch.config.schema.kinds import Count, Device, StageName, Threads
from roll_launch.config.schema.model import PretrainedModel, StageModel
from roll_launch.config.section import Section

GRADER = "reward_model"
"""The grader that asks a reward model; its option `model` may name one of the stage."""


class RewardModelConfig(Section):
    """A sequence-classification model that scores responses, for graders `reward_model` that name it."""

    name: StageName = Field(description="What the option `model` of a grader `reward_model` calls it.")
    model: Annotated[PretrainedModel | StageModel, Field(discriminator="source")] = Field(
        description="A Hugging Face directory, or an earlier stage that trained a reward model.",
        json_schema_extra={"also": ["reward_pretrain", "reward_model_path"]},
    )
    placement: Literal["own", "worker"] = Field(
        default="own",
        description="`own`: processes of its own, which all reward workers ask; `worker`: every reward worker"
        " loads it.",
    )
    replicas: Count = Field(default=1, description="Processes of its own side by side.")
    device: Device = Field(default="cpu", description="`cpu`, or one device such as `cuda:0`.")
    threads: Threads | None = Field(
        default=None, description="CPU threads of a process of its own; null is 1."
    )
    max_batch: Count = Field(default=16, description="Responses that are scored at once.")
    wait_s: Annotated[float, Field(ge=0)] = Field(
        default=0.005, description="Seconds that a batch waits to become full."
    )
    max_tokens: Count = Field(
        default=4096, description="Longer prompts with their response lose tokens at the beginning."
    )


def asked_models(options: object) -> Iterator[str]:
    """The option `model` of each grader `reward_model` within (nested) options of graders."""
    if isinstance(options, Mapping):
        inner = options.get("options")
        if options.get("name") == GRADER and isinstance(inner, Mapping) and "model" in inner:
            yield str(inner["model"])
        for value in options.values():
            yield from asked_models(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from asked_models(value)


def placed_options(options: Any, placed: Mapping[str, Mapping[str, object]]) -> Any:
    """Options of graders in which each grader `reward_model` that names a role has the role's own options.

    Args:
        options: `{"name", "options"}` of a grader, nested as deep as it goes.
        placed: By role, what takes the place of the option `model` or stands beside it.
    """
    if isinstance(options, Mapping):
        made = {key: placed_options(value, placed) for key, value in options.items()}
        inner = made.get("options")
        if made.get("name") == GRADER and isinstance(inner, dict) and inner.get("model") in placed:
            made["options"] = {**inner, **placed[str(inner["model"])]}
        return made
    if isinstance(options, list | tuple):
        return [placed_options(value, placed) for value in options]
    return options
