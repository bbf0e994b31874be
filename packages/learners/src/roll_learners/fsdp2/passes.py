"""One forward pass over a micro-batch, of which each rank of a context group runs a slice of the tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll_learners.batch import MicroBatch
from roll_learners.forward import EntropyUse, LogitsTerm, TokenScores, score_tokens
from roll_learners.fsdp2.ulysses import divide_attention


class ScoringPass(nn.Module):
    """The root of a sharded model: decoder and head in one forward, which FSDP2 gathers parameters around."""

    def __init__(self, model: PreTrainedModel, temperature: float, context: dist.ProcessGroup) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._context = context
        self._places: Tensor | None = None
        if dist.get_world_size(context) > 1:
            divide_attention(model, context)
            # transformers leaves the method untyped.
            decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
            decoder.register_forward_pre_hook(self._place, with_kwargs=True)

    def forward(
        self,
        batch: MicroBatch,
        entropy: EntropyUse,
        term: LogitsTerm | None,
        columns: Mapping[str, Tensor] | None,
    ) -> TokenScores:
        """The scores of all trained tokens of the micro-batch, on every rank of the context group."""
        if dist.get_world_size(self._context) == 1:
            return self._score(batch, entropy, term, columns)
        piece = own_slice(batch, dist.get_rank(self._context), dist.get_world_size(self._context))
        self._places = piece.places
        own = None if columns is None else {name: column[piece.tokens] for name, column in columns.items()}
        scores = self._score(piece.batch, entropy, term, own)
        count = len(batch.targets)
        logprobs = self._joined(scores.logprobs, piece.tokens, count)
        spread, extra = (
            None if part is None else self._joined(part, piece.tokens, count)
            for part in (scores.entropy, scores.from_logits)
        )
        return TokenScores(logprobs=logprobs, entropy=spread, from_logits=extra)

    def _score(
        self,
        batch: MicroBatch,
        entropy: EntropyUse,
        term: LogitsTerm | None,
        columns: Mapping[str, Tensor] | None,
    ) -> TokenScores:
        return score_tokens(
            self.model, batch, temperature=self._temperature, entropy=entropy, term=term, columns=columns
        )

    def _joined(self, part: Tensor, tokens: Tensor, count: int) -> Tensor:
        """[N] of which this rank has those of `tokens`."""
        scattered = part.new_zeros(count).index_put((tokens,), part)
        joined: Tensor = _Joined.apply(scattered, self._context)
        return joined

    def _place(self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The decoder would count the positions of a slice from 0."""
        return given, {**named, "position_ids": self._places}


class Slice(NamedTuple):
    """Attributes:
    batch: The micro-batch with the input of some columns; its mask is still of whole rows.
    places: int64[B, T / ranks], the positions of these inputs in their samples.
    tokens: int64[n], which of the N trained tokens are predicted from them.
    """

    batch: MicroBatch
    places: Tensor
    tokens: Tensor


def own_slice(batch: MicroBatch, rank: int, ranks: int) -> Slice:
    """The `rank`-th of `ranks` slices of a micro-batch's columns, after padding on the right.

    Args:
        batch: B rows of T tokens.
        rank: From 0.
        ranks: At least 1.
    """
    rows, length = batch.input_ids.shape
    more = -length % ranks
    width = (length + more) // ranks
    columns = slice(rank * width, (rank + 1) * width)
    places = batch.position_ids
    if places is None:
        places = torch.arange(length, device=batch.input_ids.device).expand(rows, length)
    mask = batch.attention_mask
    if mask is not None and more:
        # What is added attends to the first token, so that its state is a number.
        mask = nn.functional.pad(mask, (0, more, 0, more))
        mask[..., length:, 0] = True
    row, column = batch.positions // length, batch.positions % length
    tokens = ((column >= columns.start) & (column < columns.stop)).nonzero().squeeze(-1)
    return Slice(
        batch=dataclasses.replace(
            batch,
            input_ids=nn.functional.pad(batch.input_ids, (0, more))[:, columns],
            position_ids=None if mask is None else nn.functional.pad(places, (0, more))[:, columns],
            attention_mask=mask,
            positions=row[tokens] * width + column[tokens] - columns.start,
            targets=batch.targets[tokens],
        ),
        places=nn.functional.pad(places, (0, more))[:, columns],
        tokens=tokens,
    )


class _Joined(torch.autograd.Function):
    """The sum over ranks of vectors that each fills in part. What follows is the same on every rank, so each
    takes the gradient of its own part alone."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        joined = part.clone()
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
