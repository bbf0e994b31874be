"""The plan of a stage in environments: which ones, held-out starts, and how turns are sampled."""

from dataclasses import dataclass

import numpy as np
from roll_agentic import AgenticError, check_options, episode_seed
from roll_agentic import option_names as options_of
from roll_learners.algorithm import Algorithm
from roll_rollout import SamplingParams

from roll_launch.callable_path import resolve_callable
from roll_launch.config import AgenticStage, EnvironmentConfig, FunctionToolConfig
from roll_launch.data import PromptEncoder, Row
from roll_launch.digests import digest, model_files
from roll_launch.errors import RollLaunchError
from roll_launch.models import load_tokenizer
from roll_launch.prompts import Prompt, PromptSet
from roll_launch.roles import ModelSpec
from roll_launch.seeds import derived_seed


class AgenticPlanError(RollLaunchError):
    """A stage in environments cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart(Prompt):
    """A start of an environment in the place of a prompt: what a group plays from.

    EpisodeStart(key="lake/2046", row=<its name>, token_ids=int32[0], environment="lake", start=2046)

    Attributes:
        environment: Its title.
        start: Given to its `reset`.
    """

    environment: str
    start: int

    @classmethod
    def of(cls, environment: str, start: int) -> "EpisodeStart":
        """The start of an environment with a seed."""
        key = f"{environment}/{start}"
        row = Row(
            prompt=key,
            messages=None,
            response=None,
            reference=None,
            columns={},
            origin="",
            domain=environment,
        )
        return cls(key=key, row=row, token_ids=np.empty(0, np.int32), environment=environment, start=start)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticPlan:
    """A stage of reinforcement learning in environments.

    Attributes:
        stage: Its configuration.
        model: What is trained.
        algorithm: What a step computes.
        sampling: Of one turn.
        heldout: Starts that it is evaluated on; None for no evaluation.
        probe_ids: int32[P], a prompt that engines are probed with.
        seed: Of the stage.
        critic: What critics are made from, if the algorithm has some.
        teachers: None, as no teacher scores episodes.
    """

    stage: AgenticStage
    model: ModelSpec
    algorithm: Algorithm
    sampling: SamplingParams
    heldout: PromptSet | None
    probe_ids: np.ndarray
    seed: int
    critic: ModelSpec | None = None
    teachers: tuple[ModelSpec, ...] = ()

    def digest(self) -> str:
        """SHA-256 of what the stage begins with: environments, held-out starts, and the model's files."""
        critics = self.stage.critics
        held_out = self.heldout.prompts if self.heldout else ()
        environments = [
            repr((each.name, each.options, each.title, each.weight, each.starts, each.tools))
            for each in self.stage.environments
        ]
        return digest(
            model_files(self.stage.model),
            model_files(critics.model) if critics is not None else (),
            (text.encode() for text in (*environments, *(prompt.key for prompt in held_out))),
        )


def plan_agentic(stage: AgenticStage, model: ModelSpec, seed: int) -> AgenticPlan:
    """Looks up environments, tools and tokenizer.

    Args:
        stage: Its configuration.
        model: What is trained.
        seed: Of the stage.

    Raises:
        AgenticPlanError: An environment or one of its options is not there, or the tokenizer has no
            end token or chat template.
        CallablePathError: A tool's function cannot be found.
        ModelError: There is no tokenizer.
    """
    for environment in stage.environments:
        _check_environment(stage, environment)
    encoder, sampling = PromptEncoder(model.tokenizer), stage.rollout.sampling
    if not encoder.end_token_ids:
        raise AgenticPlanError(
            f"stage {stage.name}: tokenizer {model.tokenizer} has no end token, which closes a turn"
        )
    if stage.episodes.form == "chat" and load_tokenizer(model.tokenizer).chat_template is None:
        raise AgenticPlanError(
            f"stage {stage.name}: tokenizer {model.tokenizer} has no chat template; allowed without one is "
            "episodes.form raw"
        )
    return AgenticPlan(
        stage=stage,
        model=model,
        algorithm=stage.algorithm.algorithm(),
        sampling=SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop=tuple(sampling.stop),
            stop_token_ids=tuple(encoder.end_token_ids),
        ),
        heldout=_heldout(stage, seed),
        probe_ids=np.array(encoder.end_token_ids[:1], np.int32),
        seed=seed,
    )


def start_seed(seed: int, environment: str, number: int, *, heldout: bool = False) -> int:
    """The seed of an environment's start; those of training are even, those held out odd.

    Args:
        seed: Of the stage.
        environment: Its title.
        number: Counts its starts.
        heldout: Whether it is for evaluation.
    """
    own = derived_seed(seed, "starts", environment)
    return episode_seed(own, number, split="validation" if heldout else "train")


def _check_environment(stage: AgenticStage, environment: EnvironmentConfig) -> None:
    try:
        names = options_of(environment.name)
        check_options(environment.name, environment.options, supplied=("sandbox",))
    except AgenticError as error:
        raise AgenticPlanError(f"stage {stage.name}: {error}") from error
    unknown = [option for option in environment.options if names and option not in names]
    if unknown and ":" in environment.name:
        raise AgenticPlanError(
            f"stage {stage.name}: environment {environment.name!r} has no option {unknown[0]!r}; it has "
            f"{', '.join(names)}"
        )
    for tool in environment.tools.offered if environment.tools is not None else ():
        if isinstance(tool, FunctionToolConfig):
            resolve_callable(tool.callable)


def _heldout(stage: AgenticStage, seed: int) -> PromptSet | None:
    """Starts by turns of all environments, as many of each as its weight says."""
    if stage.evaluation is None:
        return None
    total = sum(environment.weight for environment in stage.environments)
    counts = dict.fromkeys((environment.title for environment in stage.environments), 0)
    starts = []
    for number in range(1, stage.evaluation.episodes + 1):
        # The one that lacks most to its share.
        environment = max(
            stage.environments, key=lambda each: number * each.weight / total - counts[each.title]
        )
        title = environment.title
        starts.append(EpisodeStart.of(title, start_seed(seed, title, counts[title], heldout=True)))
        counts[title] += 1
    return PromptSet(prompts=tuple(starts), dropped=0)
