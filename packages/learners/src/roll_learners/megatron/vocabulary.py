"""Log-probs and entropy from logits whose vocabulary is spread over the tensor-parallel processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roll_learners.forward import LOGITS_PER_CHUNK, EntropyUse, LogitsTerm, TokenScores
from roll_learners.megatron.pieces import piece_bounds


class VocabularyPiece(NamedTuple):
    """What a process has of the vocabulary.

    Attributes:
        group: The processes that share it.
        start: First token of this one.
        stop: The one after its last.
        tokens: In the whole vocabulary.
    """

    group: dist.ProcessGroup
    start: int
    stop: int
    tokens: int

    @staticmethod
    def of_group(group: dist.ProcessGroup, tokens: int) -> VocabularyPiece:
        """This process's piece of a vocabulary of so many tokens."""
        start, stop = piece_bounds(tokens, dist.get_rank(group), dist.get_world_size(group), padded=True)
        return VocabularyPiece(group, start, stop, tokens)

    def logprobs(self, logits: Tensor, targets: Tensor, *, entropy: EntropyUse = "none") -> TokenScores:
        """Log-probs of the targets, and entropies; the same in all processes, with gradient to each piece.

        Args:
            logits: [N, stop - start], of this process, divided by the temperature, at least float32.
            targets: int64[N], in the whole vocabulary.
            entropy: Whether entropy is computed, and whether gradient flows through it.
        """
        peak = logits.detach().amax(-1)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=self.group)
        total = self._summed((logits - peak.unsqueeze(-1)).exp().sum(-1))
        normaliser = total.log() + peak
        inside = (targets >= self.start) & (targets < self.stop)
        local = (targets - self.start).clamp(0, self.stop - self.start - 1)
        own = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1)
        target = self._summed(torch.where(inside, own, torch.zeros_like(own)))
        entropies = None
        if entropy == "metric":
            entropies = self._entropy(logits.detach(), normaliser.detach())
        elif entropy == "gradient":
            entropies = self._entropy(logits, normaliser)
        return TokenScores(logprobs=target - normaliser, entropy=entropies)

    def whole(self, logits: Tensor) -> Tensor:
        """[N, tokens] from every process's [N, stop - start]; a gradient goes back to the pieces."""
        width = -(-self.tokens // dist.get_world_size(self.group))
        padded = F.pad(logits, (0, width - logits.shape[-1]))
        gathered: Tensor = gather_from_tensor_model_parallel_region(padded, group=self.group)
        return gathered[..., : self.tokens]

    def _entropy(self, logits: Tensor, normaliser: Tensor) -> Tensor:
        # Each process has but its share of the sum, and so of the gradient that reaches the normaliser.
        spread: Tensor = copy_to_tensor_model_parallel_region(normaliser, group=self.group)
        # A logit of -inf has probability 0 and must add 0; times -inf it would add NaN.
        finite = logits.clamp(min=torch.finfo(logits.dtype).min)
        probabilities = (logits - spread.unsqueeze(-1)).exp()
        return normaliser - self._summed((probabilities * finite).sum(-1))

    def _summed(self, values: Tensor) -> Tensor:
        total: Tensor = reduce_from_tensor_model_parallel_region(values, group=self.group)
        return total


class HeadScores(NamedTuple):
    """What is computed from the states before trained tokens, chunk by chunk.

    Attributes:
        weight: [rows, H], this process's piece of the head; rows beyond the vocabulary are not looked at.
        piece: Which tokens these are.
        copied: The states are the same in all tensor-parallel processes, so their gradients are summed here.
        temperature: Divides the logits.
        entropy: Whether it is computed.
        term: A further number of each token.
    """

    weight: Tensor
    piece: VocabularyPiece
    copied: bool
    temperature: float
    entropy: EntropyUse = "none"
    term: LogitsTerm | None = None

    def scores(self, states: Tensor, targets: Tensor, columns: Mapping[str, Tensor]) -> TokenScores:
        """The scores of N tokens.

        Args:
            states: [N, H].
            targets: int64[N].
            columns: What `term` needs, [N, ...] each.
        """
        if self.copied:
            states = copy_to_tensor_model_parallel_region(states, group=self.piece.group)
        given = columns if self.term is not None else {}
        chunk = max(1, LOGITS_PER_CHUNK // (self.piece.stop - self.piece.start))
        if len(states) <= chunk:
            return self._chunk(states, targets, given)
        parts: list[TokenScores] = []
        for first in range(0, len(states), chunk):
            cut = slice(first, first + chunk)
            arguments = (states[cut], targets[cut], {name: column[cut] for name, column in given.items()})
            if torch.is_grad_enabled():
                parts.append(
                    checkpoint(self._chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
                )
            else:
                parts.append(self._chunk(*arguments))
        return TokenScores(
            logprobs=torch.cat([part.logprobs for part in parts]),
            entropy=_joined([part.entropy for part in parts]),
            from_logits=_joined([part.from_logits for part in parts]),
        )

    def _chunk(self, states: Tensor, targets: Tensor, columns: Mapping[str, Tensor]) -> TokenScores:
        raw = F.linear(states, self.weight[: self.piece.stop - self.piece.start])
        raw = raw.float() if raw.dtype in (torch.bfloat16, torch.float16) else raw
        scaled = raw / self.temperature if self.temperature != 1.0 else raw
        scores = self.piece.logprobs(scaled, targets, entropy=self.entropy)
        if self.term is None:
            return scores
        return scores._replace(from_logits=self.term(self.piece.whole(raw), columns))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None
