"""Numbers that follow from a configuration: what `roll-launch check` prints before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from roll_launch.config.schema.agentic import AgenticStage
from roll_launch.config.schema.distillation import DistillationStage
from roll_launch.config.schema.preference import PreferenceStage
from roll_launch.config.schema.run import RunConfig
from roll_launch.config.schema.stages import RlvrStage, SftStage, StageConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What one stage comes to.

    Derived(stage="rlvr", pipeline="rlvr", steps=80, prompts_per_step=16, group_size=8, samples_per_step=128,
    mini_batches=(64, 64), epochs=1, optimizer_steps_per_step=2, optimizer_steps=160, total_samples=10240,
    longest_sequence=112, tokens_per_step=14336, total_tokens=1146880, micro_batches_per_step=2,
    evaluations=(0, 20, 40, 60, 80), evaluation_samples=512)

    Args:
        stage: Its name.
        pipeline: Such as "sft" or "rlvr".
        steps: Training steps.
        prompts_per_step: Rows in one step.
        group_size: Completions of each; 1 in supervised stages, 2 in those of pairs.
        samples_per_step: Their product.
        mini_batches: Samples of each optimizer step of one pass.
        epochs: Passes over a step's samples.
        optimizer_steps_per_step: Mini-batches of all passes.
        optimizer_steps: In the whole stage.
        total_samples: In the whole stage, without evaluations.
        longest_sequence: Tokens of prompt and response together, at most.
        tokens_per_step: At most.
        total_tokens: At most, without evaluations.
        micro_batches_per_step: Forward and backward passes of a step in which every sequence is the longest.
        evaluations: After which steps held-out accuracy is measured; 0 is before training.
        evaluation_samples: Responses in one evaluation, at most.
    """

    stage: str
    pipeline: str
    steps: int
    prompts_per_step: int
    group_size: int
    samples_per_step: int
    mini_batches: tuple[int, ...]
    epochs: int
    optimizer_steps_per_step: int
    optimizer_steps: int
    total_samples: int
    longest_sequence: int
    tokens_per_step: int
    total_tokens: int
    micro_batches_per_step: int
    evaluations: tuple[int, ...]
    evaluation_samples: int


def derive(config: RunConfig) -> list[Derived]:
    """The numbers of each stage, in order."""
    return [_of(stage) for stage in config.stages]


def derived_rows(derived: Derived) -> list[tuple[str, str]]:
    """The numbers in words for a table: ("samples per step", "16 prompts x 8 responses = 128")."""
    d = derived
    if d.pipeline in ("sft", "preference", "distillation") and d.group_size == 1:
        samples = f"{d.samples_per_step:,}"
    else:
        samples = f"{d.prompts_per_step:,} prompts x {d.group_size:,} responses = {d.samples_per_step:,}"
    passes = f", {d.epochs} passes" if d.epochs > 1 else ""
    rows = [
        ("steps", f"{d.steps:,}"),
        ("samples per step", samples),
        ("mini-batches", f"{_counted(d.mini_batches)} samples{passes}"),
        ("optimizer steps", f"{d.optimizer_steps_per_step:,} per step, {d.optimizer_steps:,} in all"),
        ("samples", f"{d.total_samples:,}"),
        ("longest sequence", f"{d.longest_sequence:,} tokens"),
        ("tokens", f"at most {d.tokens_per_step:,} per step, {d.total_tokens:,} in all"),
        ("micro-batches", f"{d.micro_batches_per_step:,} per step if every sequence is the longest"),
    ]
    if d.evaluations:
        steps = ", ".join(str(step) for step in d.evaluations[:8]) + (
            ", ..." if len(d.evaluations) > 8 else ""
        )
        rows.append(
            (
                "evaluations",
                f"{len(d.evaluations):,} of {d.evaluation_samples:,} prompts, after steps {steps}",
            )
        )
    return rows


def evaluation_steps(stage: RlvrStage | AgenticStage) -> tuple[int, ...]:
    """After which steps a stage is evaluated: 0, every so many, and the last; none without evaluation."""
    if stage.evaluation is None:
        return ()
    return (*range(0, stage.steps, stage.evaluation.every), stage.steps)


def _of(stage: StageConfig) -> Derived:
    if isinstance(stage, SftStage):
        return _of_sft(stage)
    if isinstance(stage, PreferenceStage | DistillationStage):
        return _of_offline(stage)
    return _of_rlvr(stage)


def _of_offline(stage: PreferenceStage | DistillationStage) -> Derived:
    pairs = isinstance(stage, PreferenceStage) and stage.objective.preset != "kto"
    samples = stage.batch_size * (2 if pairs else 1)
    evaluation = stage.evaluation
    sampled = evaluation.generation if evaluation is not None else None
    return Derived(
        stage=stage.name,
        pipeline=stage.pipeline,
        steps=stage.steps,
        prompts_per_step=stage.batch_size,
        group_size=2 if pairs else 1,
        samples_per_step=samples,
        mini_batches=(samples,),
        epochs=1,
        optimizer_steps_per_step=1,
        optimizer_steps=stage.steps,
        total_samples=stage.steps * samples,
        longest_sequence=stage.max_tokens,
        tokens_per_step=samples * stage.max_tokens,
        total_tokens=stage.steps * samples * stage.max_tokens,
        micro_batches_per_step=_micro_batches((samples,), stage.max_tokens, stage.learner.micro_batch_tokens),
        evaluations=() if evaluation is None else (*range(0, stage.steps, evaluation.every), stage.steps),
        evaluation_samples=sampled.prompts if sampled is not None else 0,
    )


def _of_sft(stage: SftStage) -> Derived:
    return Derived(
        stage=stage.name,
        pipeline=stage.pipeline,
        steps=stage.steps,
        prompts_per_step=stage.batch_size,
        group_size=1,
        samples_per_step=stage.batch_size,
        mini_batches=(stage.batch_size,),
        epochs=1,
        optimizer_steps_per_step=1,
        optimizer_steps=stage.steps,
        total_samples=stage.steps * stage.batch_size,
        longest_sequence=stage.max_tokens,
        tokens_per_step=stage.batch_size * stage.max_tokens,
        total_tokens=stage.steps * stage.batch_size * stage.max_tokens,
        micro_batches_per_step=_micro_batches(
            (stage.batch_size,), stage.max_tokens, stage.learner.micro_batch_tokens
        ),
        evaluations=(),
        evaluation_samples=0,
    )


def _of_rlvr(stage: RlvrStage | AgenticStage) -> Derived:
    rollout, learner = stage.rollout, stage.learner
    samples = rollout.prompts_per_step * rollout.group_size
    mini_batches = _even_parts(samples, learner.mini_batches)
    longest = rollout.max_prompt_tokens + rollout.sampling.max_tokens
    per_step = learner.mini_batches * learner.epochs
    return Derived(
        stage=stage.name,
        pipeline=stage.pipeline,
        steps=stage.steps,
        prompts_per_step=rollout.prompts_per_step,
        group_size=rollout.group_size,
        samples_per_step=samples,
        mini_batches=mini_batches,
        epochs=learner.epochs,
        optimizer_steps_per_step=per_step,
        optimizer_steps=stage.steps * per_step,
        total_samples=stage.steps * samples,
        longest_sequence=longest,
        tokens_per_step=samples * longest,
        total_tokens=stage.steps * samples * longest,
        micro_batches_per_step=_micro_batches(mini_batches, longest, learner.micro_batch_tokens)
        * learner.epochs,
        evaluations=evaluation_steps(stage),
        evaluation_samples=stage.evaluation.prompts if stage.evaluation is not None else 0,
    )


def _even_parts(total: int, parts: int) -> tuple[int, ...]:
    """`total` in `parts` that differ by at most one, larger ones first: how a learner deals samples."""
    size, larger = divmod(total, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)


def _micro_batches(mini_batches: Sequence[int], longest: int, budget: int) -> int:
    """Passes for mini-batches of sequences that all are the longest; the last token of each is not read."""
    held = max(1, budget // max(1, longest - 1))
    return sum(-(-size // held) for size in mini_batches)


def _counted(sizes: Sequence[int]) -> str:
    """`2 x 64`, or `2 x 43 + 1 x 42` where they differ."""
    return " + ".join(f"{sizes.count(size)} x {size:,}" for size in dict.fromkeys(sizes))
