"""A causal language model and how it is run: the part that a learner and a reference have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.batch import MicroBatch, micro_batches, scatter_tokens
from roll_learners.compute import ComputeSettings
from roll_learners.errors import LearnerError
from roll_learners.execution import autocast, prepare_model
from roll_learners.forward import (
    EntropyUse,
    LogitsTerm,
    TokenScores,
    check_model,
    head_logits,
    runs_shared_rows,
    score_tokens,
    token_states,
    use_packed_rows,
)
from roll_learners.objective import LinearObjective, Metric, Objective, Terms, TokenBatch
from roll_learners.routing import Routers
from roll_learners.sample import Sample
from roll_learners.segments import Totals

STATES_AT_A_TIME = 256
"""Tokens whose logits over the whole vocabulary exist at a time when the greatest are picked."""


class TopLogits(NamedTuple):
    """Attributes:
    ids: int64[N, K], of each token of a sample the most probable next tokens; 0 where it is not trained.
    logits: [N, K], theirs, before any temperature.
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.floating]


class LocalScorer:
    """Log-probs of samples on one device. By itself it serves as a reference policy."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
        compute: ComputeSettings | None = None,
        router_aux_loss: float = 0.0,
    ) -> None:
        """Args:
        model: A causal language model; it is moved to `device` and its dropout switched off, so that
            the ratio of two passes at equal weights is 1.
        micro_batch_tokens: Most tokens in one pass, padding included.
        temperature: The one that completions are sampled with; divides the logits.
        device: A torch device.
        compute: Precision and layout; None is the default of each. With packing the model's attention
            function is exchanged.
        router_aux_loss: Weight of a loss that spreads tokens over the experts of each layer, sequence by
            sequence, so that it does not depend on the split; 0 is none.

        Raises:
            LearnerError: A setting is out of range, or the model's logits, or one of `compute`, are not
                supported.
        """
        if not temperature > 0:
            raise LearnerError(f"learner temperature is {temperature}: allowed is above 0")
        if micro_batch_tokens < 1:
            raise LearnerError(f"learner micro_batch_tokens is {micro_batch_tokens}: at least 1 is needed")
        model.to(device).eval()  # type: ignore[arg-type]  # transformers types `to` for a bound module
        check_model(model)
        self.model = model
        self.device = device
        self.dtype: type[np.floating] = np.float64 if model.dtype == torch.float64 else np.float32
        self.temperature = temperature
        self._micro_batch_tokens = micro_batch_tokens
        self.compute = ComputeSettings() if compute is None else compute
        if self.compute.packing:
            use_packed_rows(model)
        if not 0 <= router_aux_loss < float("inf"):
            raise LearnerError(f"learner router_aux_loss is {router_aux_loss}: allowed is at least 0")
        self._aux_loss = router_aux_loss
        self._routers = Routers(model) if router_aux_loss else None
        self._sharing = (
            model.config.get_text_config().hidden_size
            if not router_aux_loss and runs_shared_rows(model)
            else None
        )
        prepare_model(model, self.compute)

    def batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """The micro-batches that hold each sample with a trained token once.

        Raises:
            LearnerError: A sample is longer than micro_batch_tokens.
        """
        return micro_batches(
            samples,
            budget=self._micro_batch_tokens,
            sharing=self._sharing,
            device=self.device,
            packing=self.compute.packing,
        )

    def score(
        self,
        batch: MicroBatch,
        *,
        entropy: EntropyUse = "none",
        term: LogitsTerm | None = None,
        columns: Mapping[str, Tensor] | None = None,
    ) -> TokenScores:
        """The scores of a micro-batch's trained tokens, with gradient where that is enabled."""
        return self._pass(batch, entropy, term, columns, None)

    def _pass(
        self,
        batch: MicroBatch,
        entropy: EntropyUse,
        term: LogitsTerm | None,
        columns: Mapping[str, Tensor] | None,
        slopes: Tensor | None,
    ) -> TokenScores:
        self._route(batch, record=self._aux_loss > 0 and torch.is_grad_enabled())
        with autocast(self.compute, self.device):
            return score_tokens(
                self.model,
                batch,
                temperature=self.temperature,
                entropy=entropy,
                term=term,
                columns=columns,
                slopes=slopes,
            )

    def terms(
        self, batch: MicroBatch, objective: Objective, columns: Mapping[str, Tensor], totals: Totals
    ) -> Terms:
        """The objective's loss and metrics of a micro-batch; see `roll_learners.gradient.Runner`."""
        entropy, term = objective.entropy, objective.logits_term
        # A subclass that scores in its own way makes its own gradients.
        if isinstance(objective, LinearObjective) and type(self).score is LocalScorer.score:
            like = torch.zeros(0, dtype=torch.float64 if self.dtype == np.float64 else torch.float32)
            slopes = objective.slopes(like.to(self.device), batch.segments, totals, columns)
            scores = self._pass(batch, entropy, term, columns, slopes)
        else:
            scores = self.score(batch, entropy=entropy, term=term, columns=columns)
        terms = objective.terms(
            TokenBatch(
                logprobs=scores.logprobs,
                entropy=scores.entropy,
                from_logits=scores.from_logits,
                segments=batch.segments,
                totals=totals,
                columns=columns,
            )
        )
        if self._routers is None or not self._aux_loss or batch.rows is None:
            return terms
        imbalance = self._routers.imbalance(batch.rows, len(batch.members)).sum() / max(1, totals.sequences)
        return Terms(
            loss=terms.loss + self._aux_loss * totals.ranks * imbalance,
            metrics={**terms.metrics, "router_imbalance": Metric(imbalance.detach(), "sum")},
        )

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights, 0 elsewhere.

        Returns:
            float32[N] for each sample (float64 from a float64 model).
        """
        return self._columns(samples, lambda batch: self.score(batch).logprobs, width=())

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """[N, H] for each sample, from which `logits` makes the distribution of each trained token."""
        width = (int(self.model.config.get_text_config().hidden_size),)
        return self._columns(samples, self._states, width=width)

    def logits(self, states: Tensor) -> Tensor:
        """[N, V] at states[N, H], before any temperature; without gradient."""
        with torch.no_grad():
            return head_logits(self.model, states.to(self.device, self.model.dtype))

    def top_logits(self, samples: Sequence[Sample], k: int) -> list[TopLogits]:
        """The k greatest logits at each trained token: what a teacher sends over a network.

        Raises:
            LearnerError: k is not from 1 to the size of the vocabulary.
        """
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        if not 1 <= k <= vocabulary:
            raise LearnerError(f"top_logits: k is {k}: allowed is 1 to {vocabulary}")

        def top(batch: MicroBatch) -> Tensor:
            states = torch.split(self._states(batch), STATES_AT_A_TIME)
            parts = [torch.topk(self.logits(piece), k) for piece in states]
            return torch.cat([torch.cat([part.indices.double(), part.values.double()], 1) for part in parts])

        columns = self._columns(samples, top, width=(2 * k,))
        return [
            TopLogits(ids=column[:, :k].astype(np.int64), logits=column[:, k:].astype(self.dtype))
            for column in columns
        ]

    def _route(self, batch: MicroBatch, *, record: bool = False) -> None:
        """Sets the routers of a mixture of experts up for the next pass."""
        if self._routers is None and batch.experts is None and not record:
            return
        if self._routers is None:
            self._routers = Routers(self.model)
        self._routers.replay(batch.experts)
        if record:
            self._routers.record()

    def _states(self, batch: MicroBatch) -> Tensor:
        self._route(batch)
        with autocast(self.compute, self.device):
            return token_states(self.model, batch)

    def _columns(
        self, samples: Sequence[Sample], compute: Callable[[MicroBatch], Tensor], *, width: tuple[int, ...]
    ) -> list[npt.NDArray[np.floating]]:
        """What `compute` gives for the trained tokens of each micro-batch, by sample."""
        columns: list[npt.NDArray[np.floating]] = [
            np.zeros((len(sample.token_ids), *width), self.dtype) for sample in samples
        ]
        for batch in self.batches(samples):
            with torch.no_grad():
                computed = compute(batch).cpu()
            # numpy has no bfloat16, of which states may be.
            flat = (computed.float() if computed.dtype == torch.bfloat16 else computed).numpy()
            scored = scatter_tokens(flat, [samples[i] for i in batch.members])
            for i, column in zip(batch.members, scored, strict=True):
                columns[i] = column
        return columns
