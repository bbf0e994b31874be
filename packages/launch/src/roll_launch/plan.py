"""From a configuration to what a run will do: data read, prompts encoded, models named, before anything
starts.

Every fault in a user's input surfaces here, in the driver, without torch and before Ray. `check` prints a
plan; `run` executes it.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from roll_learners.algorithm import Algorithm
from roll_learners.sample import Sample
from roll_rewards import RewardError, make_grader
from roll_rollout import SamplingParams

from roll_launch.config import ModelConfig, PretrainedModel, RandomModel, RlvrStage, RunConfig, SftStage
from roll_launch.data import DataError, PromptEncoder, PromptOrder, Row, open_rows
from roll_launch.errors import RollLaunchError
from roll_launch.roles import ModelSpec
from roll_launch.run_directory import RunDirectory
from roll_launch.seeds import derived_seed

COMPARING_GRADERS = frozenset({"choice", "exact", "math", "number", "text_match"})
"""Graders that have no verdict without a reference."""


SAMPLED_BLOCK, SAMPLED_BLOCKS = 2**16, 64
"""Bytes of one block, and how many (nearly) are read of each file of a pretrained model."""


class PlanError(RollLaunchError):
    """A stage cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A row of the data and its prompt's token ids, int32[P].

    `key` is its number among those of its domain, after the domain: "17", "math/17".
    """

    key: str
    row: Row
    token_ids: np.ndarray

    @property
    def columns(self) -> Mapping[str, object]:
        """What graders get by name: the prompt, its domain in a mixture, and the row's further columns."""
        row = self.row
        prompt = row.prompt if row.messages is None else list(row.messages)
        domain = {"domain": row.domain} if row.domain else {}
        return {"prompt": prompt, **domain, **row.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The prompts of one data source, in file order; `dropped` rows had too long a prompt."""

    prompts: tuple[Prompt, ...]
    dropped: int

    def endless(self, seed: int, *, first: int = 0) -> Iterator[Prompt]:
        """Epoch after epoch, each in an order of its own drawn from `seed`, from occurrence `first` on."""
        order = PromptOrder(len(self.prompts), seed)
        return (self.prompts[order.row(occurrence)] for occurrence in itertools.count(first))


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
        return _digest(
            _model_files(self.stage.model),
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

    def digest(self) -> str:
        """SHA-256 of what the stage begins with: tokens, references and columns of all prompts, held-out ones
        too, and the model's files."""
        held_out = self.heldout.prompts if self.heldout else ()
        critics = self.stage.critics
        return _digest(
            _model_files(self.stage.model),
            _model_files(critics.model) if critics is not None else (),
            (
                part
                for each in (*self.prompts.prompts, *held_out)
                for part in (each.token_ids.tobytes(), repr((each.row.reference, each.row.columns)).encode())
            ),
        )


StagePlan = SftPlan | RlvrPlan


def plan_stages(config: RunConfig, directory: RunDirectory) -> list[StagePlan]:
    """Reads and encodes the data of every stage.

    Args:
        config: The whole configuration.
        directory: Of the run; models of earlier stages will be there.

    Raises:
        DataError: Missing, broken or empty data, or a prompt over the limit.
        ModelError: A model or tokenizer that cannot be found.
    """
    models: dict[str, ModelSpec] = {}
    for stage in config.stages:
        models[stage.name] = _model_spec(stage.model, models, directory, config.seed)
    plans: dict[str, StagePlan] = {}
    # Prompts before demonstrations: they are read in a moment, and so are their faults.
    for stage in sorted(config.stages, key=lambda stage: isinstance(stage, SftStage)):
        seed = derived_seed(config.seed, stage.name)
        if isinstance(stage, SftStage):
            plans[stage.name] = _plan_sft(stage, models[stage.name], seed)
        else:
            plan = _plan_rlvr(stage, models[stage.name], seed)
            if stage.critics is not None:
                own = derived_seed(config.seed, f"{stage.name} critics")
                critic = _model_spec(stage.critics.model, models, directory, config.seed)
                plan = replace(plan, critic=replace(critic, seed=own))
            plans[stage.name] = plan
    return [plans[stage.name] for stage in config.stages]


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


def _plan_rlvr(stage: RlvrStage, model: ModelSpec, seed: int) -> RlvrPlan:
    try:
        make_grader(stage.rewards.grader.name, **stage.rewards.grader.options)
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
    if lacking and stage.rewards.grader.name in COMPARING_GRADERS:
        raise DataError(
            f"{lacking[0]}: no reference for grader {stage.rewards.grader.name} to compare with "
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


def _digest(*parts: Iterable[bytes]) -> str:
    """SHA-256, hexadecimal, of parts and where each ends."""
    total = hashlib.sha256()
    for part in itertools.chain(*parts):
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _model_files(model: ModelConfig) -> Iterator[bytes]:
    """The configuration of a pretrained model; name, size and a sample of the bytes of its weights."""
    if isinstance(model, PretrainedModel):
        directory = Path(model.path)
        yield (directory / "config.json").read_bytes()
        for path in sorted(directory.glob("*.safetensors")):
            size = path.stat().st_size
            yield f"{path.name} {size}".encode()
            # Other weights of one shape have one size. Blocks all over the file are read in a moment.
            with path.open("rb") as file:
                for start in range(0, size, max(SAMPLED_BLOCK, size // SAMPLED_BLOCKS)):
                    file.seek(start)
                    yield file.read(SAMPLED_BLOCK)
