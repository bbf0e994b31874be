"""What the roles of a stage are built from, taken from its plan."""

from pathlib import Path

from roll_hw import threads_per_process

from roll_launch.plan import RlvrPlan, SftPlan
from roll_launch.roles import ActorSpec, CriticsSpec, RewardSpec, TrainerSpec


def supervised_trainer(plan: SftPlan, *, processors: int, checkpoint: Path | None = None) -> TrainerSpec:
    """The trainer of a supervised stage, from its model or from a checkpoint of it."""
    return TrainerSpec(
        model=plan.model,
        learner=plan.stage.learner,
        algorithm=None,
        temperature=1.0,
        optimizer_steps=plan.stage.steps,
        seed=plan.seed,
        threads=plan.stage.learner.threads or processors,
        resume=checkpoint,
    )


def policy_trainer(plan: RlvrPlan, *, processors: int, checkpoint: Path | None = None) -> TrainerSpec:
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
        threads=learner.threads or (_shared(plan, processors) if _beside_each_other(plan) else processors),
        resume=checkpoint,
    )


def _critics(plan: RlvrPlan) -> CriticsSpec | None:
    critics = plan.stage.critics
    if critics is None or plan.critic is None:
        return None
    return CriticsSpec(
        model=plan.critic,
        count=critics.count,
        optimizer=critics.optimizer,
        warmup_steps=critics.warmup_steps,
    )


def actor(plan: RlvrPlan, *, processors: int) -> ActorSpec:
    """Each rollout replica; the trainer computes beside them in asynchronous stages only."""
    rollout = plan.stage.rollout
    return ActorSpec(
        model=plan.model,
        engine=rollout.engine,
        max_context=rollout.max_prompt_tokens + plan.sampling.max_tokens,
        threads=rollout.engine.threads or _shared(plan, processors),
    )


def _beside_each_other(plan: RlvrPlan) -> bool:
    """Whether replicas generate while the trainer trains."""
    asynchrony = plan.stage.rollout.asynchrony
    return asynchrony is not None and not asynchrony.carry


def _shared(plan: RlvrPlan, processors: int) -> int:
    return threads_per_process(processors, plan.stage.rollout.replicas + _beside_each_other(plan))


def reward_worker(plan: RlvrPlan) -> RewardSpec:
    """Each reward worker."""
    rewards = plan.stage.rewards
    return RewardSpec(
        tokenizer=plan.model.tokenizer,
        grader=rewards.grader,
        deadline_s=rewards.deadline_s,
        concurrency=rewards.concurrency,
    )
