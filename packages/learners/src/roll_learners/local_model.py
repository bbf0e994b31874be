"""A trained model on one device: AdamW, clipping, and updates that are skipped when they are not finite.

`LocalLearner` trains policies with it, `LocalCritic` values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.batch import Column, total_counts
from roll_learners.culprits import culprits
from roll_learners.errors import LearnerError
from roll_learners.gradient import Accumulated, Runner, accumulate_gradient
from roll_learners.master_weights import MasterWeights
from roll_learners.offload import move_optimizer, move_parameters
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings, learning_rate
from roll_learners.segments import Totals
from roll_learners.update import SkippedUpdate, UpdateResult

logger = logging.getLogger("roll_learners.local")  # the name that users of the learner know
Target = TypeVar("Target")


class LocalModel(Generic[Target]):
    """What learners and critics of one process have in common; `Target` is the kind of objective."""

    def __init__(
        self,
        model: PreTrainedModel,
        runner: Runner[Target],
        settings: OptimizerSettings,
        *,
        master_weights: bool = True,
    ) -> None:
        """Args:
        model: Trained in place. Parameters that require no gradient stay as they are.
        runner: Runs it.
        settings: Rates, clipping and schedule.
        master_weights: See `ComputeSettings`.

        Raises:
            LearnerError: No parameter requires a gradient.
        """
        self.model = model
        self.settings = settings
        self.updates = 0
        self._runner = runner
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if not trained:
            raise LearnerError(f"{type(model).__name__} has no parameter that requires a gradient")
        self._masters = MasterWeights(trained) if master_weights else None
        self._parameters = trained if self._masters is None else self._masters.masters
        self._adamw = _adamw(self._parameters, settings)

    def update(
        self,
        samples: Sequence[Sample],
        objective: Target,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> UpdateResult:
        """One optimizer step on these samples; see `roll_learners.Learner.update`.

        Raises:
            LearnerError: A column does not fit, or a sample is longer than micro_batch_tokens.
        """
        counts = total_counts(samples) if totals is None else totals
        self.reload()
        done, norm = self._gradient(samples, objective, columns, counts)
        if not _finite(done, norm):

            def finite(members: Sequence[int]) -> bool:
                """Of some samples alone."""
                own = {name: _entries(column, members) for name, column in columns.items()}
                return _finite(*self._gradient([samples[i] for i in members], objective, own, counts))

            names = range(len(samples)) if indices is None else indices
            skipped = self._skipped(done, norm, finite, names)
            self._adamw.zero_grad()
            return UpdateResult(metrics={"skipped_steps": 1.0, "tokens": float(done.tokens)}, skipped=skipped)
        rate = self._step(norm)
        return UpdateResult(
            metrics={
                **done.tally.results(),
                "loss": done.losses.sum().item(),
                "grad_norm": norm.item(),
                "lr": rate,
                "skipped_steps": 0.0,
                "tokens": float(done.tokens),
            }
        )

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of all that `save_pretrained` would write, tied tensors once.

        Names are those of the model's state dict, which for dense models are its checkpoint's. The
        tensors are the live ones: copy them before the next update.
        """
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor.detach()

    def state_dict(self) -> dict[str, Any]:
        """Optimizer state, number of updates, and of a model in half precision the master weights: with the
        model's weights, all that an exact resume needs.

        As in torch the tensors are the live ones: write them before the next update.
        """
        masters = [] if self._masters is None else self._masters.state()
        state = {"optimizer": self._adamw.state_dict(), "updates": self.updates}
        return state | {"masters": masters} if masters else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes on a state of `state_dict`; the model is loaded by whoever made it.

        Raises:
            LearnerError: The state is not one of a learner with these parameters.
        """
        missing = {"optimizer", "updates"} - state.keys()
        if missing:
            raise LearnerError(
                f"learner state lacks {', '.join(sorted(missing))}, has {', '.join(sorted(state))}"
            )
        settings = [{key: group[key] for key in ("betas", "eps", "weight_decay")} for group in self._groups()]
        try:
            self._adamw.load_state_dict(state["optimizer"])
        except (ValueError, KeyError) as error:
            raise LearnerError(f"learner state does not fit this model: {error}") from error
        for group, own in zip(self._groups(), settings, strict=True):
            group.update(own)
        if self._masters is not None:
            self._masters.load(state.get("masters", []))
        self.updates = int(state["updates"])

    def offload(self, *, optimizer: bool = True, parameters: bool = False) -> int:
        """Moves optimizer state (and master weights) or the model to host memory until the next `reload`.

        An update and a state dict bring back what they need. Of a learner on the CPU nothing moves.

        Returns:
            Bytes that left the device.
        """
        if torch.device(self._runner.device).type == "cpu":
            logger.debug("nothing is offloaded: the learner computes in host memory already")
            return 0
        moved = self._move("cpu", optimizer=optimizer, parameters=parameters)
        torch.accelerator.empty_cache()
        return moved

    def reload(self, *, optimizer: bool = True) -> int:
        """Moves the model, and the optimizer's state, back to the learner's device; the bytes that came."""
        return self._move(self._runner.device, optimizer=optimizer, parameters=True)

    def _move(self, device: str, *, optimizer: bool, parameters: bool) -> int:
        moved = 0
        own = {id(p) for p in self.model.parameters()}
        if optimizer:
            moved += move_optimizer(self._adamw, device)
            moved += move_parameters([p for p in self._parameters if id(p) not in own], device)
        if parameters:
            moved += move_parameters([*self.model.parameters(), *self.model.buffers()], device)
        return moved

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory of the model alone."""
        self.model.save_pretrained(directory)

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._adamw.param_groups
        return groups

    def _gradient(
        self,
        samples: Sequence[Sample],
        objective: Target,
        columns: Mapping[str, Column],
        totals: Totals,
    ) -> tuple[Accumulated, Tensor]:
        """Leaves the gradient of these samples in the parameters; returns the rest, and its norm.

        A parameter that got no gradient gets zeros, so that AdamW treats it the same whether its samples
        were computed or known to add nothing.
        """
        self._adamw.zero_grad()
        done = accumulate_gradient(self._runner, samples, objective, columns, totals=totals)
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return done, torch.nn.utils.get_total_norm(gradients)

    def _step(self, norm: Tensor) -> float:
        if self.settings.max_grad_norm is not None:
            self._clip(norm, self.settings.max_grad_norm)
        rate = learning_rate(self.settings, self.updates)
        for group in self._groups():
            group["lr"] = rate
        self._adamw.step()
        if self._masters is not None:
            self._masters.publish()
        self.updates += 1
        return rate

    def _clip(self, norm: Tensor, longest: float) -> None:
        torch.nn.utils.clip_grads_with_norm_(self._parameters, longest, norm)

    def _skipped(
        self,
        done: Accumulated,
        norm: Tensor,
        finite: Callable[[Sequence[int]], bool],
        names: Sequence[int],
    ) -> SkippedUpdate:
        """The record of an update that is not finite, whose culprits are searched for."""
        poisoned = (~torch.isfinite(done.losses)).tolist()
        suspects = [members for members, bad in zip(done.members, poisoned, strict=True) if bad]
        found = culprits(np.concatenate(suspects or done.members).tolist(), finite)
        skipped = SkippedUpdate(
            update=self.updates,
            what="loss" if suspects else "gradient",
            samples=tuple(sorted(names[i] for i in found)),
            loss=done.losses.sum().item(),
            gradient_norm=norm.item(),
        )
        logger.warning(
            "update %d skipped: %s is not finite in samples %s (loss %s, gradient norm %s)",
            skipped.update,
            skipped.what,
            list(skipped.samples),
            skipped.loss,
            skipped.gradient_norm,
        )
        return skipped


def _finite(done: Accumulated, norm: Tensor) -> bool:
    return bool(torch.isfinite(norm) and torch.isfinite(done.losses).all())


def _entries(column: Column, members: Sequence[int]) -> Column:
    return column[list(members)] if isinstance(column, np.ndarray) else [column[i] for i in members]


def _adamw(parameters: Sequence[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )
