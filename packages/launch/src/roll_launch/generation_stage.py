"""A stage's held-out generation as the reinforcement-learning stage that would do it.

Engines, graders and evaluation of such a stage then serve stages that sample nothing while they train.
"""

from roll_launch.config import (
    AlgorithmConfig,
    DistillationStage,
    EvaluationConfig,
    GenerationConfig,
    PolicyDeadlines,
    PolicyLearnerConfig,
    PreferenceStage,
    RlvrStage,
    RolloutConfig,
)


def generation_stage(stage: PreferenceStage | DistillationStage, sampled: GenerationConfig) -> RlvrStage:
    """A stage of the same name and model whose evaluation is the one of `sampled`."""
    deadlines = stage.deadlines
    every = stage.evaluation.every if stage.evaluation is not None else 1
    return RlvrStage(
        name=stage.name,
        pipeline="rlvr",
        model=stage.model,
        data=sampled.data,
        evaluation=EvaluationConfig(data=sampled.data, prompts=sampled.prompts, every=every),
        algorithm=AlgorithmConfig(preset="reinforce"),
        rollout=RolloutConfig(
            engine=sampled.engine,
            replicas=sampled.replicas,
            group_size=1,
            prompts_per_step=sampled.prompts,
            sampling=sampled.sampling,
            max_prompt_tokens=sampled.max_prompt_tokens,
            sync_tolerance=sampled.sync_tolerance,
        ),
        rewards=sampled.rewards,
        learner=PolicyLearnerConfig(optimizer=stage.learner.optimizer, threads=stage.learner.threads),
        steps=stage.steps,
        health=sampled.health,
        deadlines=PolicyDeadlines(
            start_s=deadlines.start_s,
            step_s=deadlines.step_s,
            rollout_s=deadlines.evaluation_s,
            sync_s=deadlines.sync_s,
        ),
    )
