"""The learner of one process and one device."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.batch import Column, total_counts
from roll_learners.errors import LearnerError
from roll_learners.gradient import Accumulated, accumulate_gradient
from roll_learners.objective import Objective
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings, learning_rate
from roll_learners.scoring import LocalScorer
from roll_learners.segments import Totals

logger = logging.getLogger(__name__)


class LocalLearner:
    """AdamW on one device. Any objective, any causal language model of transformers.

    Dropout is off also in updates, so that log-probs do not depend on a random state.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
    ) -> None:
        """Args:
        model: A causal language model; it is moved to `device` and trained in place. Parameters
            that require no gradient stay as they are.
        optimizer: Rates, clipping and schedule.
        micro_batch_tokens: Most padded tokens in one pass.
        temperature: The one that completions are sampled with; 1 for demonstrations.
        device: A torch device.

        Raises:
            LearnerError: A setting is out of range, or the model's logits are not supported.
        """
        self._scorer = LocalScorer(
            model, micro_batch_tokens=micro_batch_tokens, temperature=temperature, device=device
        )
        self.model = model
        self.settings = optimizer
        self.updates = 0
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self._parameters:
            raise LearnerError(f"{type(model).__name__} has no parameter that requires a gradient")
        self._adamw = _adamw(self._parameters, optimizer)

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights; see `LocalScorer.logprobs`."""
        return self._scorer.logprobs(samples)

    def update(
        self,
        samples: Sequence[Sample],
        objective: Objective,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> dict[str, float]:
        """One optimizer step on these samples; see `roll_learners.Learner.update`.

        Raises:
            LearnerError: A column does not fit, or a sample is longer than micro_batch_tokens.
        """
        self._adamw.zero_grad()
        counts = total_counts(samples) if totals is None else totals
        done = accumulate_gradient(self._scorer, samples, objective, columns, totals=counts)
        norm = self._gradient_norm()
        if not (torch.isfinite(norm) and torch.isfinite(done.losses).all()):
            self._report_not_finite(done, norm, range(len(samples)) if indices is None else indices)
            self._adamw.zero_grad()
            return {"skipped_steps": 1.0, "tokens": float(done.tokens)}
        rate = self._step(norm)
        return {
            **done.tally.results(),
            "loss": done.losses.sum().item(),
            "grad_norm": norm.item(),
            "lr": rate,
            "skipped_steps": 0.0,
            "tokens": float(done.tokens),
        }

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
        """Optimizer state and number of updates: with the model's weights, all that an exact resume needs.

        As in torch the tensors are the live ones: write them before the next update.
        """
        return {"optimizer": self._adamw.state_dict(), "updates": self.updates}

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
        self.updates = int(state["updates"])

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory of the model alone."""
        self.model.save_pretrained(directory)

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._adamw.param_groups
        return groups

    def _gradient_norm(self) -> Tensor:
        """The norm over all parameters; one that got no gradient gets zeros, so that AdamW treats it
        the same whether its samples were computed or known to add nothing."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])

    def _step(self, norm: Tensor) -> float:
        if self.settings.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.settings.max_grad_norm, norm)
        rate = learning_rate(self.settings, self.updates)
        for group in self._groups():
            group["lr"] = rate
        self._adamw.step()
        self.updates += 1
        return rate

    def _report_not_finite(self, done: Accumulated, norm: Tensor, indices: Sequence[int]) -> None:
        poisoned = ~torch.isfinite(done.losses)
        chosen = [each for each, bad in zip(done.members, poisoned.tolist(), strict=True) if bad]
        named = np.concatenate(chosen or done.members)
        logger.warning(
            "update %d skipped: %s is not finite in samples %s (loss %s, gradient norm %s)",
            self.updates,
            "loss" if chosen else "gradient",
            sorted(indices[i] for i in named),
            done.losses.sum().item(),
            norm.item(),
        )


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
