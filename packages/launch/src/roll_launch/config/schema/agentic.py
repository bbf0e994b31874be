"""Reinforcement learning in environments: which ones, how episodes are played, what is trained of them."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from roll_agentic import AgenticError, check_options
from roll_agentic.samples import RowKind
from roll_agentic.tools import PARSERS
from roll_learners.errors import LearnerError

from roll_launch.config.schema.alarms import PolicyAlarmsConfig
from roll_launch.config.schema.algorithm import AlgorithmConfig
from roll_launch.config.schema.checkpoint import CheckpointConfig, PolicyDeadlines
from roll_launch.config.schema.critics import CriticsConfig
from roll_launch.config.schema.fit import micro_batch_findings, warmup_findings
from roll_launch.config.schema.health import HealthConfig
from roll_launch.config.schema.kinds import CallablePath, Count, Seconds, StageName
from roll_launch.config.schema.learner import PolicyLearnerConfig
from roll_launch.config.schema.model import ModelConfig
from roll_launch.config.schema.rollout import RolloutConfig
from roll_launch.config.section import Finding, Section

BY_TURNS = frozenset({"gigpo", "step_reinforce", "turn_reinforce"})
"""Advantages that need the turns of an episode in one sequence."""

SUPPLIED = ("sandbox",)
"""Options of environments that are no text: where programs run is given by the environment worker."""


class PythonToolConfig(Section):
    """The tool `python(code)`: programs run in the sandbox of roll_rewards."""

    tool: Literal["python"] = Field(description="Runs programs.")
    seconds: Seconds = Field(default=5.0, description="Seconds for one program.")
    sandboxes: Count = Field(default=2, description="Programs at the same time, in each environment worker.")


class FunctionToolConfig(Section):
    """A typed function of yours."""

    tool: Literal["function"] = Field(description="Calls a function.")
    callable: CallablePath = Field(
        description="`package.module:function`; its signature and docstring become the schema."
    )


class McpToolConfig(Section):
    """All tools of an MCP server (extra `mcp` of roll-agentic)."""

    tool: Literal["mcp"] = Field(description="Asks an MCP server.")
    url: str | None = Field(default=None, description="Address of a running server, over HTTP.")
    command: tuple[str, ...] = Field(
        default=(), description="Program and arguments of a server that each environment worker starts."
    )

    def findings(self) -> Iterator[Finding]:
        if (self.url is None) == (not self.command):
            yield Finding(path=(), message="a server has either a url or a command", allowed="one of them")


ToolConfig: TypeAlias = Annotated[
    PythonToolConfig | FunctionToolConfig | McpToolConfig, Field(discriminator="tool")
]


class ToolsConfig(Section):
    """What the policy may call before it acts."""

    offered: tuple[ToolConfig, ...] = Field(description="At least one.")
    parser: str = Field(
        default="hermes", description=f"How calls are found in a turn: one of {', '.join(sorted(PARSERS))}."
    )
    calls: Count | None = Field(default=None, description="Calls in one episode, at most; null for any.")
    deadline_s: Seconds = Field(default=30.0, description="Seconds for one call.")
    mistake_reward: Annotated[float, Field(le=0)] = Field(
        default=0.0, description="Reward of a turn with a malformed call."
    )

    def findings(self) -> Iterator[Finding]:
        if not self.offered:
            yield Finding(path=("offered",), message="offers no tool", allowed="at least one")
        if self.parser not in PARSERS:
            allowed = ", ".join(sorted(PARSERS))
            yield Finding(path=("parser",), message="unknown parser", got=self.parser, allowed=allowed)


class EnvironmentConfig(Section):
    """An environment, or one of several."""

    name: str = Field(
        description="As `roll-env` knows it: `frozen_lake`, `gem/ID`, `my.module:Environment`; see"
        " docs/agentic.md.",
        json_schema_extra={"also": ["env", "env_type", "environment"]},
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Of the environment.")
    label: StageName | None = Field(
        default=None, description="What metrics call it; null makes one from its name."
    )
    weight: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Share of the episodes, relative to the other weights."
    )
    starts: Count | None = Field(
        default=None,
        description="Train on so many different starts, epoch after epoch; null takes a new one each time.",
    )
    concurrency: Count = Field(
        default=64,
        description="Episodes at a time in each environment worker.",
        json_schema_extra={"also": ["max_env_step_concurrent"]},
    )
    isolation: Literal["none", "thread", "process"] = Field(
        default="thread",
        description="Where its methods run: `thread` lets them block; `process` kills what hangs or crashes;"
        " `none` calls them in the worker's own loop, for those that answer at once.",
    )
    tools: ToolsConfig | None = Field(default=None, description="Tools; null offers none.")

    @property
    def title(self) -> str:
        """What metrics and files call it."""
        return self.label or "".join(c if c.isalnum() or c in "_-" else "_" for c in self.name)

    def findings(self) -> Iterator[Finding]:
        try:
            check_options(self.name, self.options, supplied=SUPPLIED)
        except AgenticError as error:
            yield Finding(path=("name",), message=str(error), got=self.name)


class EpisodesConfig(Section):
    """How an episode is played, and what is trained of it."""

    max_turns: Count = Field(
        description="Turns of the policy.",
        json_schema_extra={"also": ["max_steps", "max_actions", "max_actions_per_traj"]},
    )
    max_tokens: Count | None = Field(
        default=None, description="No turn begins once an episode has so many tokens; null for any number."
    )
    max_tool_calls: Count | None = Field(
        default=None, description="No turn begins once it called tools so often; null for any number."
    )
    seconds: Seconds | None = Field(
        default=None, description="Wall-clock time of an episode, which is cut off then; null for no limit."
    )
    step_deadline_s: Seconds = Field(
        default=60.0, description="Seconds for one call of an environment; then its episode has no verdict."
    )
    form: Literal["chat", "raw"] = Field(
        default="chat",
        description="`chat` renders turns with the tokenizer's chat template; `raw` puts their texts one"
        " after the other, each of the policy's closed by the end token.",
    )
    template_options: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the chat template, such as `enable_thinking: false`."
    )
    system: str | None = Field(
        default=None, description="System message; null takes the environment's rules, empty none."
    )
    tool_role: Literal["tool", "user"] = Field(
        default="tool", description="Role of what tools answer; `user` for templates that know no `tool`."
    )
    history: Literal["append", "render"] = Field(
        default="append",
        description="`append` keeps older turns as they were sampled; `render` renders the chat anew each"
        " turn: where that changes older tokens, a further sample begins.",
    )
    overflow: Literal["stop", "truncate_oldest"] = Field(
        default="stop",
        description="When a turn no longer fits behind rollout.max_prompt_tokens: end the episode, or go on"
        " without the oldest turns, in a further sample.",
    )
    observation_chars: Count = Field(
        default=20_000, description="Characters of an observation; a longer one is cut in the middle."
    )
    samples: RowKind = Field(
        default="trajectory",
        description="What is one training sample: `trajectory` an episode; `step` a turn with all before it;"
        " `step_concatenated` the turns of an episode in one sequence, each a unit of credit.",
    )
    workers: Count = Field(default=1, description="Environment workers.")

    def findings(self) -> Iterator[Finding]:
        if self.form == "raw" and self.template_options:
            yield Finding(path=("template_options",), message="form raw has no template", allowed="{}")
        if self.form == "raw" and self.history == "render":
            yield Finding(
                path=("history",), message="texts one after the other never change", allowed="append"
            )


class EpisodeEvaluationConfig(Section):
    """Episodes with held-out starts, sampled as in training: before, while and after the stage trains."""

    episodes: Count = Field(description="How many, over all environments; their starts are never trained on.")
    every: Count = Field(
        description="Steps between evaluations.",
        json_schema_extra={"also": ["eval_steps", "test_freq", "eval_interval"]},
    )

    @property
    def prompts(self) -> int:
        """As held-out prompts are counted: each is played once."""
        return self.episodes


class AgenticStage(Section):
    """Reinforcement learning in environments."""

    name: StageName = Field(description="Letters, digits, _ and -; later stages and the command line use it.")
    pipeline: Literal["agentic"] = Field(description="Reinforcement learning in environments.")
    model: ModelConfig = Field(description="What is trained.")
    environments: tuple[EnvironmentConfig, ...] = Field(description="At least one.")
    episodes: EpisodesConfig = Field(description="How they are played.")
    evaluation: EpisodeEvaluationConfig | None = Field(
        default=None, description="Held-out reward and success; null measures none."
    )
    algorithm: AlgorithmConfig = Field(description="Advantage, loss and KL.")
    critics: CriticsConfig | None = Field(
        default=None, description="For algorithms that estimate values, such as ppo; else null."
    )
    rollout: RolloutConfig = Field(
        description="Groups and engines: a prompt is a start of an environment, a response an episode from"
        " it. max_prompt_tokens bounds the context before a turn, sampling.max_tokens one turn, and"
        " over_provision makes redundant environments."
    )
    learner: PolicyLearnerConfig = Field(description="How the policy is updated.")
    steps: Count = Field(
        description="Training steps, each with one rollout and one weight sync.",
        json_schema_extra={"also": ["max_steps", "total_steps", "total_training_steps"]},
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="What is kept while it trains."
    )
    health: HealthConfig = Field(
        default=HealthConfig(), description="What happens to workers that die or hang."
    )
    alarms: PolicyAlarmsConfig | None = Field(
        default=PolicyAlarmsConfig(), description="What it warns of; null switches all alarms off."
    )
    deadlines: PolicyDeadlines = Field(default=PolicyDeadlines(), description="Bounds of every wait.")

    def findings(self) -> Iterator[Finding]:
        yield from self._environment_findings()
        yield from self._rollout_findings()
        yield from self._algorithm_findings()
        steps = self.steps * self.learner.mini_batches * self.learner.epochs
        yield from warmup_findings(self.learner.optimizer, steps)
        longest = self.rollout.max_prompt_tokens + self.rollout.sampling.max_tokens
        what = "rollout.max_prompt_tokens + rollout.sampling.max_tokens"
        yield from micro_batch_findings(self.learner, longest, what)

    def _environment_findings(self) -> Iterator[Finding]:
        if not self.environments:
            yield Finding(path=("environments",), message="has no environment", allowed="at least one")
        titles = [environment.title for environment in self.environments]
        for index, title in enumerate(titles):
            if title in titles[:index]:
                yield Finding(
                    path=("environments", index, "label"),
                    message="two environments have one label",
                    got=title,
                )

    def _rollout_findings(self) -> Iterator[Finding]:
        rollout = self.rollout
        samples = rollout.prompts_per_step * rollout.group_size
        if self.learner.mini_batches > samples:
            yield Finding(
                path=("learner", "mini_batches"),
                message=f"more than a step has episodes: prompts_per_step {rollout.prompts_per_step} x"
                f" group_size {rollout.group_size}",
                got=f"{self.learner.mini_batches}",
                allowed=f"1 to {samples}",
            )
        if rollout.overlong_prompts != "error":
            yield Finding(
                path=("rollout", "overlong_prompts"),
                message="prompts are not known before an episode: see episodes.overflow",
                got=rollout.overlong_prompts,
                allowed="error, the default",
            )
        asynchrony = rollout.asynchrony
        if asynchrony is not None and (asynchrony.carry or asynchrony.in_flight == "stop"):
            yield Finding(
                path=("rollout", "asynchrony", "carry" if asynchrony.carry else "in_flight"),
                message="an environment does not stand still: episodes are not stopped and resumed",
                allowed="carry false, in_flight keep or abort",
            )

    def _algorithm_findings(self) -> Iterator[Finding]:
        try:
            algorithm = self.algorithm.algorithm()
        except LearnerError:
            return  # Said already by the algorithm's own findings.
        preset = self.algorithm.preset
        if algorithm.needs_group_baseline and self.rollout.group_size == 1:
            yield Finding(
                path=("rollout", "group_size"),
                message=f"{preset} compares episodes from one start; 1 trains nothing",
                got="1",
                allowed="int >= 2",
            )
        if algorithm.advantage in BY_TURNS and self.episodes.samples == "step":
            yield Finding(
                path=("episodes", "samples"),
                message=f"{preset} needs the turns of an episode in one sequence",
                got="step",
                allowed="trajectory or step_concatenated, which trains the same tokens in the same contexts",
            )
        if algorithm.needs_critic != (self.critics is not None):
            needs = algorithm.needs_critic
            yield Finding(
                path=("critics",),
                message=f"{preset} needs them" if needs else f"{preset} estimates no values",
                allowed="a mapping" if needs else "null",
            )
        if "teacher" in algorithm.needs:
            yield Finding(
                path=("algorithm", "preset"),
                message="learns from a teacher, which pipeline rlvr has",
                got=preset,
            )


def longest_episode_s(stage: AgenticStage) -> float:
    """Seconds after which an episode is over or has failed: its own limit, or those of all its calls."""
    episodes = stage.episodes
    calls = episodes.max_turns * (stage.rollout.generate_deadline_s + episodes.step_deadline_s)
    return (
        min(math.inf if episodes.seconds is None else episodes.seconds, calls) + 2 * episodes.step_deadline_s
    )
