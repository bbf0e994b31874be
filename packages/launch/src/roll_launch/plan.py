"""From a configuration to what a run will do: data read, prompts encoded, models named, before anything
starts.

Every fault in a user's input surfaces here, in the driver, without torch and before Ray. `check` prints a
plan; `run` executes it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from roll_learners.algorithm import Algorithm
from roll_learners.sample import Sample
from roll_rewards import RewardError, make_grader
from roll_rollout import SamplingParams

from roll_launch.agentic_plan import AgenticPlan, plan_agentic
from roll_launch.config import (
    AgenticStage,
    DistillationStage,
    ModelConfig,
    PreferenceStage,
    PretrainedModel,
    RandomModel,
    RlvrStage,
    RunConfig,
    SftStage,
)
from roll_launch.data import DataError, PromptEncoder, Row, open_rows
from roll_launch.digests import digest, model_files
from roll_launch.errors import RollLaunchError
from roll_launch.generation_stage import generation_stage
from roll_launch.learner_layout import refuse_unfit_layouts
from roll_launch.models import load_tokenizer
from roll_launch.offline_plan import OfflinePlan, plan_offline
from roll_launch.prompts import Prompt, PromptSet
from roll_launch.roles import ModelSpec
from roll_launch.run_directory import RunDirectory
from roll_launch.seeds import derived_seed

COMPARING_GRADERS = frozenset({"choice", "exact", "math", "number", "text_match"})
"""Graders that have no verdict without a reference."""


class PlanError(RollLaunchError):
    """A stage cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPlan:
    """A supervised stage with its samples and where each is from; `dropped` rows were too long, `empty` ones
    had no response."""

    stage: SftStage
    model: ModelSpec
    samples: tuple[Sample, ...]
    origins: tuple[str, ...]
    dropped: int
    empty: int
    seed: int

    def digest(self) -> str:
        """SHA-256 of what the stage begins with: the samples' tokens and masks, and the model's files."""
        return digest(
            model_files(self.stage.model),
            (
                part
                for each in self.samples
                for part in (each.token_ids.tobytes(), each.response_mask.tobytes())
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RlvrPlan:
    """A stage of reinforcement learning with verifiable rewards, with its prompts."""

    stage: RlvrStage
    model: ModelSpec
    algorithm: Algorithm
    sampling: SamplingParams
    prompts: PromptSet
    heldout: PromptSet | None
    seed: int
    critic: ModelSpec | None = None
    teachers: tuple[ModelSpec, ...] = ()
    reward_models: tuple[ModelSpec, ...] = ()

    @property
    def probe_ids(self) -> np.ndarray:
        """int32[P], a prompt that engines are probed with."""
        return self.prompts.prompts[0].token_ids

    def digest(self) -> str:
        """SHA-256 of what the stage begins with: tokens, references and columns of all prompts, held-out ones
        too, and the model's files."""
        held_out = self.heldout.prompts if self.heldout else ()
        critics = self.stage.critics
        return digest(
            model_files(self.stage.model),
            model_files(critics.model) if critics is not None else (),
            *(model_files(teacher.model) for teacher in self.stage.teachers),
            *(model_files(each.model) for each in self.stage.rewards.models),
            (
                part
                for each in (*self.prompts.prompts, *held_out)
                for part in (each.token_ids.tobytes(), repr((each.row.reference, each.row.columns)).encode())
            ),
        )


PolicyPlan = RlvrPlan | AgenticPlan
StagePlan = SftPlan | RlvrPlan | AgenticPlan | OfflinePlan


def plan_stages(config: RunConfig, directory: RunDirectory) -> list[StagePlan]:
    """Reads and encodes the data of every stage.

    Args:
        config: The whole configuration.
        directory: Of the run; models of earlier stages will be there.

    Raises:
        DataError: Missing, broken or empty data, or a prompt over the limit.
        ModelError: A model or tokenizer that cannot be found.
        LayoutError: A model that does not fit the ranks of its learner.
    """
    models: dict[str, ModelSpec] = {}
    for stage in config.stages:
        models[stage.name] = _model_spec(stage.model, models, directory, config.seed)
    plans: dict[str, StagePlan] = {}
    # Prompts before demonstrations: they are read in a moment, and so are their faults.
    for stage in sorted(config.stages, key=lambda stage: not isinstance(stage, RlvrStage | AgenticStage)):
        seed = derived_seed(config.seed, stage.name)

        def spec(model: ModelConfig) -> ModelSpec:
            return _model_spec(model, models, directory, config.seed)

        if isinstance(stage, SftStage):
            plans[stage.name] = _plan_sft(stage, models[stage.name], seed)
        elif isinstance(stage, AgenticStage):
            played = plan_agentic(stage, models[stage.name], seed)
            plans[stage.name] = replace(played, critic=_critic(stage, config.seed, spec))
        elif isinstance(stage, PreferenceStage | DistillationStage):
            plans[stage.name] = _plan_offline(stage, models[stage.name], seed, spec)
        else:
            plan = replace(
                _plan_rlvr(stage, models[stage.name], seed),
                teachers=_teachers(stage, models[stage.name], spec),
                reward_models=tuple(spec(each.model) for each in stage.rewards.models),
            )
            plans[stage.name] = replace(plan, critic=_critic(stage, config.seed, spec))
    refuse_unfit_layouts([(stage, models[stage.name]) for stage in config.stages])
    return [plans[stage.name] for stage in config.stages]


def _critic(
    stage: RlvrStage | AgenticStage, seed: int, spec: Callable[[ModelConfig], ModelSpec]
) -> ModelSpec | None:
    """What critics are made from, with seeds of their own."""
    if stage.critics is None:
        return None
    return replace(spec(stage.critics.model), seed=derived_seed(seed, f"{stage.name} critics"))


def _model_spec(
    model: ModelConfig, earlier: dict[str, ModelSpec], directory: RunDirectory, seed: int
) -> ModelSpec:
    if isinstance(model, RandomModel):
        return ModelSpec(
            path=None,
            architecture=model.architecture,
            overrides=model.config,
            tokenizer=Path(model.tokenizer).absolute(),
            dtype=model.dtype,
            seed=seed,
        )
    if isinstance(model, PretrainedModel):
        # Absolute, because workers need not share the driver's working directory.
        path = Path(model.path).absolute()
        tokenizer = Path(model.tokenizer).absolute() if model.tokenizer else path
        return ModelSpec(
            path=path, architecture=None, overrides={}, tokenizer=tokenizer, dtype=model.dtype, seed=seed
        )
    before = earlier[model.stage]
    return ModelSpec(
        path=directory.model(model.stage),
        architecture=before.architecture,
        overrides=before.overrides,
        tokenizer=before.tokenizer,
        dtype=before.dtype,
        seed=seed,
    )


def _plan_sft(stage: SftStage, model: ModelSpec, seed: int) -> SftPlan:
    encoded = PromptEncoder(model.tokenizer).encode_supervised(
        open_rows(stage.data), max_tokens=stage.max_tokens, overlong=stage.overlong
    )
    return SftPlan(
        stage=stage,
        model=model,
        samples=tuple(Sample(token_ids=ids, response_mask=mask) for ids, mask in encoded.samples),
        origins=encoded.origins,
        dropped=encoded.dropped,
        empty=encoded.empty,
        seed=seed,
    )


def _plan_offline(
    stage: PreferenceStage | DistillationStage,
    model: ModelSpec,
    seed: int,
    spec: Callable[[ModelConfig], ModelSpec],
) -> OfflinePlan:
    generation, sampled = None, stage.evaluation.generation if stage.evaluation is not None else None
    if sampled is not None:
        generation = replace(
            _plan_rlvr(generation_stage(stage, sampled), model, seed),
            reward_models=tuple(spec(each.model) for each in sampled.rewards.models),
        )
    teachers = _teachers(stage, model, spec) if isinstance(stage, DistillationStage) else ()
    return plan_offline(stage, model, teachers=teachers, generation=generation, seed=seed)


def _teachers(
    stage: RlvrStage | DistillationStage, student: ModelSpec, spec: Callable[[ModelConfig], ModelSpec]
) -> tuple[ModelSpec, ...]:
    """The models of teachers, which must read the student's tokens.

    Raises:
        PlanError: A teacher's tokenizer has other ids.
    """
    teachers = tuple(spec(teacher.model) for teacher in stage.teachers)
    own = None
    for index, teacher in enumerate(teachers):
        if teacher.tokenizer == student.tokenizer:
            continue
        own = own or load_tokenizer(student.tokenizer).get_vocab()
        theirs = load_tokenizer(teacher.tokenizer).get_vocab()
        if any(theirs.get(token) != number for token, number in own.items()):
            raise PlanError(
                f"stage {stage.name}: the tokenizer of teacher {index}, {teacher.tokenizer}, gives other ids "
                f"than the student's, {student.tokenizer}; distillation compares distributions over the same "
                "tokens"
            )
    return teachers


def _plan_rlvr(stage: RlvrStage, model: ModelSpec, seed: int) -> RlvrPlan:
    grader = stage.rewards.grader
    try:
        if grader is not None:
            make_grader(grader.name, **grader.options)
    except RewardError as error:
        raise PlanError(f"stage {stage.name}: {error}") from error
    encoder = PromptEncoder(model.tokenizer)
    heldout = None
    if stage.evaluation is not None:
        rows = open_rows(stage.evaluation.data)[: stage.evaluation.prompts]
        heldout = _encode(rows, encoder, stage)
    sampling = stage.rollout.sampling
    return RlvrPlan(
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
        prompts=_encode(open_rows(stage.data), encoder, stage),
        heldout=heldout,
        seed=seed,
    )


def _encode(rows: Sequence[Row], encoder: PromptEncoder, stage: RlvrStage) -> PromptSet:
    lacking = [row.origin for row in rows if row.reference is None]
    grader = stage.rewards.grader
    if lacking and grader is not None and grader.name in COMPARING_GRADERS:
        raise DataError(
            f"{lacking[0]}: no reference for grader {grader.name} to compare with "
            f"({len(lacking)} of {len(rows)} rows have none); name its column with `reference:`"
        )
    encoded = encoder.encode_prompts(
        rows, max_prompt_tokens=stage.rollout.max_prompt_tokens, overlong=stage.rollout.overlong_prompts
    )
    numbers: Counter[str] = Counter()
    prompts: list[Prompt] = []
    for row, ids in encoded.prompts:
        number, numbers[row.domain] = numbers[row.domain], numbers[row.domain] + 1
        key = f"{row.domain}/{number}" if row.domain else f"{number}"
        prompts.append(Prompt(key=key, row=row, token_ids=ids))
    return PromptSet(prompts=tuple(prompts), dropped=encoded.dropped)
