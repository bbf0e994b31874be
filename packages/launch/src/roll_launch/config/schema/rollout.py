"""How completions are generated: engine, groups, sampling."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from roll_launch.config.schema.engines import EngineConfig, OpenaiEngineConfig, TransformersEngineConfig
from roll_launch.config.schema.kinds import Count, NonNegative, Overlong, Seconds
from roll_launch.config.schema.scheduling import (
    AsynchronyConfig,
    FiltersConfig,
    OverProvisionConfig,
    SchedulingConfig,
)
from roll_launch.config.schema.weight_sync import AutoSyncConfig, WeightSyncConfig
from roll_launch.config.section import Finding, Section


class SamplingConfig(Section):
    """The distribution that completions are sampled from."""

    temperature: float = Field(
        default=1.0, ge=0, description="Divides the logits; the learner divides by it too."
    )
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Nucleus sampling; 1 is off, as training requires."
    )
    top_k: NonNegative = Field(
        default=0, description="Keep the k likeliest tokens; 0 is off, as training requires."
    )
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="Least share of the top token; 0 is off, as training requires."
    )
    max_tokens: Count = Field(
        description="Longest response.",
        json_schema_extra={
            "also": ["max_response_length", "max_completion_length", "max_new_tokens", "generate_max_len"]
        },
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Texts that end a response.", json_schema_extra={"also": ["stop_strings"]}
    )


class RolloutConfig(Section):
    """One step's rollout: `prompts_per_step` prompts with `group_size` completions each."""

    engine: EngineConfig = Field(default=TransformersEngineConfig(), description="What generates.")
    replicas: Count = Field(default=1, description="Engines side by side.")
    group_size: Count = Field(
        description="Completions of each prompt.",
        json_schema_extra={
            "also": ["n", "num_generations", "n_samples_per_prompt", "num_return_sequences_in_group"]
        },
    )
    prompts_per_step: Count = Field(
        description="Prompts in one training step.",
        json_schema_extra={"also": ["train_batch_size", "rollout_batch_size"]},
    )
    sampling: SamplingConfig = Field(
        description="How tokens are sampled.", json_schema_extra={"also": ["sampling_params"]}
    )
    max_prompt_tokens: Count = Field(
        description="Longest prompt.", json_schema_extra={"also": ["max_prompt_length", "prompt_max_len"]}
    )
    overlong_prompts: Overlong = Field(
        default="error",
        description="What a longer prompt does: `error` stops before the run, `drop` leaves it out.",
    )
    generate_deadline_s: Seconds = Field(
        default=600.0, description="Seconds for one completion; then it is retried."
    )
    sync_tolerance: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="How far log-probs of engine and learner may differ after a weight sync, on a probe, in"
        " nats; null takes 0.001 for float32, 0.25 for bfloat16 and 1 where vLLM quantises."
        " See docs/weight_sync.md.",
    )
    weight_sync: WeightSyncConfig = Field(
        default=AutoSyncConfig(), description="How new weights get from the trainer to the engines."
    )
    record: bool = Field(
        default=False,
        description="Write every completion into the run directory, for `engine.kind: replay`.",
    )
    filters: FiltersConfig = Field(default=FiltersConfig(), description="Groups that are not trained on.")
    over_provision: OverProvisionConfig | None = Field(
        default=None, description="Speculative prompts and responses; null sends out what a step needs."
    )
    asynchrony: AsynchronyConfig | None = Field(
        default=None,
        description="Generation goes on while the policy is trained; null is on-policy, one after the other.",
    )
    scheduling: SchedulingConfig = Field(
        default=SchedulingConfig(), description="Which completion starts next, and on which replica."
    )
    retries: NonNegative = Field(
        default=1, description="Times that a failed completion or grading is tried again."
    )

    def findings(self) -> Iterator[Finding]:
        if self.sampling.temperature == 0:
            yield Finding(
                path=("sampling", "temperature"),
                message="greedy responses carry no log-probs to train on; a training rollout samples",
                got="0",
                allowed="float > 0",
            )
        for name, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)):
            value = getattr(self.sampling, name)
            if value != off:
                yield Finding(
                    path=("sampling", name),
                    message="cuts off tokens that the learner's log-probs still count: wrong ratios",
                    got=f"{value}",
                    allowed=f"{off} in a training rollout",
                )
        engine = self.engine
        raw = isinstance(engine, OpenaiEngineConfig) and engine.logprobs_of == "raw"
        if raw and self.sampling.temperature != 1:
            yield Finding(
                path=("sampling", "temperature"),
                message="the server's log-probs are of the distribution before temperature, training needs"
                " those after it",
                got=f"{self.sampling.temperature:g}",
                allowed="1, or engine.logprobs_of: sampled from a server that gives them",
            )
        extra = self.over_provision
        if extra is not None and extra.prompts > self.prompts_per_step:
            yield Finding(
                path=("over_provision", "prompts"),
                message="more than twice what a step needs",
                got=f"{extra.prompts}",
                allowed=f"0 to {self.prompts_per_step} (prompts_per_step)",
            )
        if extra is not None and extra.defer and self.asynchrony is not None:
            yield Finding(
                path=("over_provision", "defer"),
                message="an asynchronous rollout goes on anyway with what a step did without",
                got="true",
                allowed="false with asynchrony",
            )
        if self.filters.most_uncertain is not None and (self.asynchrony is not None or extra is not None):
            yield Finding(
                path=("filters", "most_uncertain"),
                message="chooses among the groups of one on-policy step, without over-provisioned ones",
                got=f"{self.filters.most_uncertain}",
                allowed="null with asynchrony or over_provision",
            )
        yield from self._straggler_findings()
        if self.filters.zero_spread and self.group_size == 1:
            yield Finding(
                path=("filters", "zero_spread"),
                message="leaves out every group of 1; raise group_size or switch it off",
            )

    def _straggler_findings(self) -> Iterator[Finding]:
        stragglers, apart = self.scheduling.stragglers, self.asynchrony
        kept = apart is not None and (apart.carry or apart.in_flight == "stop")
        if stragglers is not None and stragglers.action == "move" and not kept:
            yield Finding(
                path=("scheduling", "stragglers", "action"),
                message="moves completions with the tokens that they have, which are kept only by"
                " asynchrony with carry or in_flight: stop",
                got="move",
                allowed="duplicate, or move with one of these",
            )
