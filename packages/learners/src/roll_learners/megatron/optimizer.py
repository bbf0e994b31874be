"""AdamW of Megatron-Core over a model's parts, its state spread over the replicas, in steps of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer

from roll_learners.megatron.layout import MegatronLayout
from roll_learners.megatron.model import DecoderModel
from roll_learners.schedule import OptimizerSettings, learning_rate


def data_parallel(parts: Sequence[DecoderModel], layout: MegatronLayout) -> list[DistributedDataParallel]:
    """The parts with buffers in which the gradients of all replicas are summed, in float32.

    Args:
        parts: Chunks of this stage.
        layout: Of the processes.
    """
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=layout.distributed_optimizer,
    )
    wrapped = [
        DistributedDataParallel(part.config, settings, part, disable_bucketing=number > 0)
        for number, part in enumerate(parts)
    ]
    for each in wrapped:
        for buffer in (*each.buffers, *each.expert_parallel_buffers):
            _count_padding(buffer)
    return wrapped


def _count_padding(buffer: Any) -> None:
    """Makes a buffer of several buckets save its state where it will look for it.

    Megatron-Core 0.16 leaves the padding between buckets out of what it saves, but not out of its places, so
    that parameters behind the first bucket (a head tied to the embedding begins a new one) come back as
    zeros. Padding that counts as content is left in both.
    """
    for bucket in buffer.buckets:
        bucket.numel_unpadded = bucket.grad_data.numel()
    buffer.numel_unpadded = buffer.numel


class ShardedAdamW:
    """AdamW, clipping and the learning rate of each update."""

    def __init__(
        self, parts: Sequence[DistributedDataParallel], settings: OptimizerSettings, layout: MegatronLayout
    ) -> None:
        """Args:
        parts: Of `data_parallel`.
        settings: Rates, clipping and schedule.
        layout: Of the processes.
        """
        self.settings = settings
        self._parts = parts
        config = parts[0].config
        self.library: MegatronOptimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                decoupled_weight_decay=True,
                lr=settings.learning_rate,
                weight_decay=settings.weight_decay,
                adam_beta1=settings.betas[0],
                adam_beta2=settings.betas[1],
                adam_eps=settings.eps,
                clip_grad=0.0,
                bf16=config.bf16,
                params_dtype=config.params_dtype,
                use_distributed_optimizer=layout.distributed_optimizer,
            ),
            list(parts),
        )

    def zero(self) -> None:
        """Forgets all gradients."""
        for part in self._parts:
            part.zero_grad_buffer()
        self.library.zero_grad()

    def norm(self) -> float:
        """Of the gradient that the parts hold, over all processes."""
        self.library.prepare_grads()
        return float(self.library.get_grad_norm())

    def step(self, norm: float, update: int) -> float:
        """Takes the step for which `norm` was the last call.

        Args:
            norm: Of the gradient.
            update: Steps that were taken before.

        Returns:
            The learning rate.
        """
        limit = self.settings.max_grad_norm
        if limit is not None and (share := limit / (norm + 1e-6)) < 1:
            for gradient in self._gradients():
                gradient.mul_(share)
        rate = learning_rate(self.settings, update)
        for group in self.library.param_groups:
            group["lr"] = rate
            # Parameters of one dimension have the multiplier 0.
            group["weight_decay"] = self.settings.weight_decay * group.get("wd_mult", 1.0)
        self.library.step_with_ready_grads()
        return rate

    def fill_state(self) -> None:
        """Makes the state that the first step would make, where there is none: the library looks for it."""
        for inner in self._inner():
            for parameter in (each for group in inner.param_groups for each in group["params"]):
                if not inner.state[parameter]:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    inner.state[parameter] = {"step": torch.tensor(0.0), **moments}

    def take_state(self, state: Any, updates: int) -> None:
        """Takes on the moments that a checkpoint filled; the settings stay this optimizer's.

        Args:
            state: Of the library's `sharded_state_dict`, loaded. Layouts with and without expert parallelism
                chain different numbers of optimizers, so only what is asked for by name of a tensor counts.
            updates: Steps that were taken.
        """
        chained = self._chained()
        states = [state] if len(chained) == 1 else [state[number] for number in range(len(chained))]
        for each, own in zip(chained, states, strict=True):
            moments = own.pop("param_state")
            settings = each.state_dict()
            for group in settings["optimizer"]["param_groups"]:
                group["step"] = float(updates)
            each.load_state_dict(settings)
            counters = self._without_counters(each)
            each.load_parameter_state_from_fully_reshardable(moments)
            for entry, step in counters:
                entry["step"] = step

    def _without_counters(self, optimizer: Any) -> list[tuple[dict[str, Any], torch.Tensor]]:
        """Takes the number of steps out of every state; returns each with a counter of its own.

        The library reads no counters, and gives all parameters the same one, which each of them would raise.
        """
        if not isinstance(optimizer.optimizer, torch.optim.AdamW):
            return []
        return [(entry, entry.pop("step").clone()) for entry in optimizer.optimizer.state.values()]

    def _inner(self) -> list[torch.optim.AdamW]:
        """Torch's optimizers below the library's; with TransformerEngine or Apex there are others."""
        found = [each.optimizer for each in self._chained()]
        return [each for each in found if isinstance(each, torch.optim.AdamW)]

    def _gradients(self) -> list[torch.Tensor]:
        parameters = [parameter for each in self._chained() for parameter in each.get_parameters()]
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def _chained(self) -> list[Any]:
        """One optimizer for parameters that all replicas share, and one for experts."""
        chained: list[Any] = list(self.library.chained_optimizers)
        return chained
