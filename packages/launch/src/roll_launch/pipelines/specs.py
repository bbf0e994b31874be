"""What the roles of a stage are built from, taken from its plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll_hw import threads_per_process

from roll_launch.agentic_plan import AgenticPlan
from roll_launch.config import (
    Fsdp2LearnerConfig,
    LearnerConfig,
    PolicyTeacherConfig,
    PreferenceStage,
    TeacherConfig,
)
from roll_launch.episode_roles import EnvironmentSpec
from roll_launch.offline_plan import OfflinePlan
from roll_launch.plan import PlanError, PolicyPlan, RlvrPlan, SftPlan
from roll_launch.roles import ActorSpec, CriticsSpec, ModelSpec, RewardSpec, TrainerSpec
from roll_launch.side_roles import (
    CriticSpec,
    OfflineSpec,
    RewardModelSpec,
    TeacherSpec,
    critic_specs,
)
from roll_launch.transports import SyncSpec


def supervised_trainer(plan: SftPlan, *, processors: int, checkpoint: Path | None = None) -> TrainerSpec:
    """The trainer of a supervised stage, from its model or from a checkpoint of it."""
    return TrainerSpec(
        model=plan.model,
        learner=plan.stage.learner,
        algorithm=None,
        temperature=1.0,
        optimizer_steps=plan.stage.steps,
        seed=plan.seed,
        threads=plan.stage.learner.threads or _of_each_rank(plan.stage.learner, processors),
        resume=checkpoint,
    )


def policy_trainer(plan: PolicyPlan, *, processors: int, checkpoint: Path | None = None) -> TrainerSpec:
    """The trainer of a reinforcement-learning stage, from its model or from a checkpoint of it."""
    learner = plan.stage.learner
    return TrainerSpec(
        model=plan.model,
        learner=learner,
        algorithm=plan.algorithm,
        temperature=plan.sampling.temperature,
        optimizer_steps=plan.stage.steps * learner.mini_batches * learner.epochs,
        seed=plan.seed,
        critics=_critics(plan),
        teachers=_teachers(
            plan.stage.teachers if isinstance(plan, RlvrPlan) else (),
            plan.teachers,
            learner,
            processors=processors,
            temperature=plan.sampling.temperature,
        ),
        samples=plan.stage.episodes.samples if isinstance(plan, AgenticPlan) else "trajectory",
        threads=learner.threads
        or _of_each_rank(learner, _shared(plan, processors) if _beside_each_other(plan) else processors),
        sync=_sync(plan),
        resume=checkpoint,
    )


def _of_each_rank(learner: LearnerConfig, processors: int) -> int:
    """Ranks compute at the same time."""
    if not isinstance(learner, Fsdp2LearnerConfig):
        return processors
    return threads_per_process(processors, learner.ranks)


def _critics(plan: PolicyPlan) -> CriticsSpec | None:
    critics = plan.stage.critics
    if critics is None or plan.critic is None:
        return None
    return CriticsSpec(
        model=plan.critic,
        count=critics.count,
        optimizer=critics.optimizer,
        warmup_steps=critics.warmup_steps,
        own=critics.placement == "own",
    )


def actor(plan: PolicyPlan, *, processors: int, recordings: Path | None = None) -> ActorSpec:
    """Each rollout replica; the trainer computes beside them in asynchronous stages only.

    Args:
        plan: Of the stage.
        processors: Of a machine.
        recordings: Where what is generated is written down, if the stage asks for that.
    """
    rollout = plan.stage.rollout
    return ActorSpec(
        model=plan.model,
        engine=rollout.engine,
        max_context=rollout.max_prompt_tokens + plan.sampling.max_tokens,
        threads=rollout.engine.threads or _shared(plan, processors),
        sync=_sync(plan),
        record=recordings if rollout.record else None,
    )


def _sync(plan: PolicyPlan) -> SyncSpec:
    rollout = plan.stage.rollout
    return SyncSpec(
        config=rollout.weight_sync,
        overlapping=_beside_each_other(plan),
        receivers=tuple(f"actor-{index}" for index in range(rollout.replicas)),
        deadline_s=plan.stage.deadlines.sync_s,
    )


def _beside_each_other(plan: PolicyPlan) -> bool:
    """Whether replicas generate while the trainer trains."""
    asynchrony = plan.stage.rollout.asynchrony
    return asynchrony is not None and not asynchrony.carry


def _shared(plan: PolicyPlan, processors: int) -> int:
    return threads_per_process(processors, plan.stage.rollout.replicas + _beside_each_other(plan))


def reward_worker(plan: RlvrPlan) -> RewardSpec:
    """Each reward worker."""
    rewards = plan.stage.rewards
    return RewardSpec(
        tokenizer=plan.model.tokenizer,
        grader=rewards.grader,
        deadline_s=rewards.deadline_s,
        concurrency=rewards.concurrency,
        models={
            name: spec
            for name, spec in _reward_models(plan).items()
            if name not in placed_reward_models(plan)
        },
        model_names=tuple(model.name for model in rewards.models),
    )


def environment_worker(plan: AgenticPlan) -> EnvironmentSpec:
    """Each environment worker."""
    rollout = plan.stage.rollout
    return EnvironmentSpec(
        tokenizer=plan.model.tokenizer,
        environments=plan.stage.environments,
        episodes=plan.stage.episodes,
        sampling=plan.sampling,
        max_context=rollout.max_prompt_tokens + plan.sampling.max_tokens,
        turn_deadline_s=rollout.generate_deadline_s,
    )


def placed_reward_models(plan: RlvrPlan) -> dict[str, tuple[RewardModelSpec, int]]:
    """The reward models that are roles of their own, and how many of each."""
    specs = _reward_models(plan)
    return {
        each.name: (specs[each.name], each.replicas)
        for each in plan.stage.rewards.models
        if each.placement == "own"
    }


def _reward_models(plan: RlvrPlan) -> dict[str, RewardModelSpec]:
    made = {}
    for each, model in zip(plan.stage.rewards.models, plan.reward_models, strict=True):
        if model.path is None:
            raise PlanError(f"reward model {each.name} has no directory")
        made[each.name] = RewardModelSpec(
            path=model.path,
            dtype="bfloat16" if model.dtype == "bfloat16" else "float32",
            device=each.device,
            threads=each.threads or 1,
            max_batch=each.max_batch,
            wait_s=each.wait_s,
            max_tokens=each.max_tokens,
        )
    return made


def placed_critics(plan: PolicyPlan, trainer: TrainerSpec, *, processors: int) -> list[CriticSpec]:
    """The critics that are roles of their own."""
    critics = plan.stage.critics
    if critics is None or critics.placement != "own":
        return []
    threads = critics.threads or threads_per_process(processors, critics.count + 1)
    return critic_specs(trainer, threads=threads)


def _teachers(
    configs: Sequence[TeacherConfig | PolicyTeacherConfig],
    models: Sequence[ModelSpec],
    learner: LearnerConfig,
    *,
    processors: int,
    **more: Any,
) -> tuple[TeacherSpec, ...]:
    own = sum(config.placement == "own" for config in configs)
    return tuple(
        TeacherSpec(
            model=model,
            own=config.placement == "own",
            weight=config.weight if isinstance(config, TeacherConfig) else config.coef,
            estimator=config.estimator if isinstance(config, PolicyTeacherConfig) else "k1",
            domains=None if config.domains is None else frozenset(config.domains),
            micro_batch_tokens=learner.micro_batch_tokens,
            device=config.device if config.placement == "own" else learner.device,
            threads=config.threads or threads_per_process(processors, own + 1),
            **more,
        )
        for config, model in zip(configs, models, strict=True)
    )


def offline_trainer(plan: OfflinePlan, *, processors: int, checkpoint: Path | None = None) -> OfflineSpec:
    """The trainer of a stage on given rows, from its model or from a checkpoint of it."""
    stage = plan.stage
    trainer = TrainerSpec(
        model=plan.model,
        learner=stage.learner,
        algorithm=None,
        temperature=1.0,
        optimizer_steps=stage.steps,
        seed=plan.seed,
        threads=stage.learner.threads or processors,
        resume=checkpoint,
        sync=SyncSpec() if plan.generation is None else _sync(plan.generation),
    )
    if isinstance(stage, PreferenceStage):
        return OfflineSpec(trainer=trainer, rule=stage.objective.rule(), once=stage.reference_once)
    rule = stage.objective.distillation()
    teachers = _teachers(
        stage.teachers,
        plan.teachers,
        stage.learner,
        processors=processors,
        top_k=rule.top_k,
        once=stage.teacher_logits == "once",
    )
    return OfflineSpec(trainer=trainer, rule=rule, teachers=teachers)
