"""A rank's part of the models of a trainer on several ranks: policy and reference."""

import torch.distributed as dist
from roll_learners import OptimizerSettings
from roll_learners.fsdp2 import Fsdp2Learner, Fsdp2Scorer, Sharding, check_family

from roll_launch.config import Fsdp2LearnerConfig
from roll_launch.models import load_model
from roll_launch.roles import TrainerSpec


def fsdp2_settings(spec: TrainerSpec) -> Fsdp2LearnerConfig:
    """The learner's section.

    Raises:
        TypeError: It is of another back-end.
    """
    settings = spec.learner
    if not isinstance(settings, Fsdp2LearnerConfig):
        raise TypeError(f"a rank of fsdp2 was given the settings of a learner of {settings.backend}")
    return settings


def build_fsdp2_learner(spec: TrainerSpec) -> Fsdp2Learner:
    """This rank's part of the policy's learner, from the stage's model; a checkpoint is loaded later."""
    settings = fsdp2_settings(spec)
    model = load_model(spec.model)
    check_family(model, settings.layout())
    return Fsdp2Learner(
        model,
        sharding=_sharding(settings),
        optimizer=OptimizerSettings(**settings.optimizer.model_dump(), total_steps=spec.optimizer_steps),
        micro_batch_tokens=settings.micro_batch_tokens,
        temperature=spec.temperature,
        device=_device(settings),
    )


def build_fsdp2_reference(spec: TrainerSpec) -> Fsdp2Scorer:
    """This rank's part of the model that the stage began with."""
    settings = fsdp2_settings(spec)
    return Fsdp2Scorer(
        load_model(spec.model),
        sharding=_sharding(settings),
        micro_batch_tokens=settings.micro_batch_tokens,
        temperature=spec.temperature,
        device=_device(settings),
    )


def _sharding(settings: Fsdp2LearnerConfig) -> Sharding:
    return Sharding(
        layout=settings.layout(),
        precision=settings.precision,
        reduce_precision=settings.reduce_precision,
        reshard_after_forward=settings.reshard_after_forward,
        offload=settings.offload,
        recompute=settings.recompute,
        packing=settings.packing,
    )


def _device(settings: Fsdp2LearnerConfig) -> str:
    """This rank's: the configured one, and one further for each rank before it."""
    kind, _, first = settings.device.partition(":")
    return kind if kind == "cpu" else f"{kind}:{int(first) + dist.get_rank()}"
