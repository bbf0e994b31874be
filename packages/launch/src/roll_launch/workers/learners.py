"""The models of a trainer's process, with what trains or scores them: policy, reference and critics."""

from dataclasses import replace

from roll_learners import (
    ComputeSettings,
    LocalLearner,
    LocalScorer,
    LoraSettings,
    OptimizerSettings,
    WithoutAdapter,
)
from roll_learners.fsdp2 import Fsdp2Learner

from roll_launch.config import Fsdp2LearnerConfig, LearnerConfig, LocalLearnerConfig, LoraConfig
from roll_launch.models import load_model
from roll_launch.roles import TrainerSpec
from roll_launch.side_roles import critic_specs
from roll_launch.workers.critic import CriticWorker
from roll_launch.workers.fsdp2_learners import build_fsdp2_learner, build_fsdp2_reference


def build_learner(spec: TrainerSpec) -> LocalLearner | Fsdp2Learner:
    """The policy's learner, from its model or from a checkpoint."""
    if isinstance(spec.learner, Fsdp2LearnerConfig):
        return build_fsdp2_learner(spec)
    learner = spec.learner
    lora = None if learner.lora is None else lora_settings(learner.lora, seed=spec.model.seed)
    # A checkpoint of an adapter is the adapter alone, beside the model that the stage began with.
    path = spec.model.path if lora is not None else spec.resume or spec.model.path
    return LocalLearner(
        load_model(replace(spec.model, path=path)),
        optimizer=OptimizerSettings(**learner.optimizer.model_dump(), total_steps=spec.optimizer_steps),
        micro_batch_tokens=learner.micro_batch_tokens,
        temperature=spec.temperature,
        device=learner.device,
        compute=compute_settings(learner),
        lora=lora if spec.resume is None else None,
        adapter=spec.resume if lora is not None else None,
        router_aux_loss=learner.router_aux_loss,
    )


def compute_settings(learner: LocalLearnerConfig) -> ComputeSettings:
    """How the models of a trainer are kept and run."""
    return ComputeSettings(
        packing=learner.packing,
        master_weights=learner.master_weights,
        autocast=learner.autocast,
        gradient_checkpointing=learner.gradient_checkpointing,
        compile=learner.compile,
    )


def lora_settings(lora: LoraConfig, *, seed: int) -> LoraSettings:
    """The shape of the adapter, whose first matrix is drawn from the model's seed."""
    return LoraSettings(
        rank=lora.rank,
        alpha=lora.alpha,
        target_modules=lora.target_modules,
        rank_stabilised=lora.rank_stabilised,
        seed=seed,
    )


def offload(learner: LocalLearner | Fsdp2Learner, settings: LearnerConfig) -> None:
    """What waits in host memory until the learner is asked for something again."""
    if isinstance(learner, LocalLearner) and not isinstance(settings, Fsdp2LearnerConfig):
        learner.offload(
            optimizer="optimizer" in settings.offload, parameters="parameters" in settings.offload
        )


def build_reference(
    spec: TrainerSpec, learner: LocalLearner | Fsdp2Learner
) -> LocalScorer | WithoutAdapter | None:
    """The model that the stage began with, if the algorithm compares with it."""
    if spec.algorithm is None or not spec.algorithm.needs_reference:
        return None
    if isinstance(learner, LocalLearner) and learner.adapter is not None:
        return learner.reference()
    if isinstance(spec.learner, Fsdp2LearnerConfig):
        return build_fsdp2_reference(spec)
    return LocalScorer(
        load_model(spec.model),
        micro_batch_tokens=spec.learner.micro_batch_tokens,
        temperature=spec.temperature,
        device=spec.learner.device,
        compute=compute_settings(spec.learner),
    )


def build_critics(spec: TrainerSpec) -> list[CriticWorker]:
    """The critics in the trainer's process, each from a seed of its own; none for algorithms without."""
    return [CriticWorker(each) for each in critic_specs(spec, threads=spec.threads)]
