"""The models of a trainer's process, with what trains or scores them: policy, reference and critics."""

from dataclasses import replace

from roll_learners import LocalLearner, LocalScorer, OptimizerSettings

from roll_launch.models import load_model
from roll_launch.roles import TrainerSpec
from roll_launch.side_roles import critic_specs
from roll_launch.workers.critic import CriticWorker


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


def build_critics(spec: TrainerSpec) -> list[CriticWorker]:
    """The critics in the trainer's process, each from a seed of its own; none for algorithms without."""
    return [CriticWorker(each) for each in critic_specs(spec, threads=spec.threads)]
