"""The models of a trainer's process, with what trains or scores them: policy, reference and critics."""

from dataclasses import replace

from roll_learners import LocalCritic, LocalLearner, LocalScorer, OptimizerSettings

from roll_launch.models import load_model, load_value_model
from roll_launch.roles import TrainerSpec


def build_learner(spec: TrainerSpec) -> LocalLearner:
    """The policy's learner, from its model or from a checkpoint."""
    return LocalLearner(
        load_model(replace(spec.model, path=spec.resume or spec.model.path)),
        optimizer=OptimizerSettings(**spec.learner.optimizer.model_dump(), total_steps=spec.optimizer_steps),
        micro_batch_tokens=spec.learner.micro_batch_tokens,
        temperature=spec.temperature,
        device=spec.learner.device,
    )


def build_reference(spec: TrainerSpec) -> LocalScorer | None:
    """The model that the stage began with, if the algorithm compares with it."""
    if spec.algorithm is None or not spec.algorithm.needs_reference:
        return None
    return LocalScorer(
        load_model(spec.model),
        micro_batch_tokens=spec.learner.micro_batch_tokens,
        temperature=spec.temperature,
        device=spec.learner.device,
    )


def build_critics(spec: TrainerSpec) -> list[LocalCritic]:
    """The critics of the stage, each from a seed of its own; none for algorithms without."""
    critics = spec.critics
    if critics is None:
        return []
    return [
        LocalCritic(
            load_value_model(replace(critics.model, seed=critics.model.seed + number)),
            optimizer=OptimizerSettings(**critics.optimizer.model_dump(), total_steps=spec.optimizer_steps),
            micro_batch_tokens=spec.learner.micro_batch_tokens,
            device=spec.learner.device,
        )
        for number in range(critics.count)
    ]
