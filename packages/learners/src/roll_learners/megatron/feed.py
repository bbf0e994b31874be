"""Micro-batches as the pipeline takes them: this replica's share of the samples, as many on every replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from roll_learners.balance import plan_ranks, plan_token_batches, sequence_costs
from roll_learners.batch import MicroBatch, collate
from roll_learners.errors import LearnerError
from roll_learners.megatron.context import context_places
from roll_learners.megatron.layout import MegatronLayout
from roll_learners.rows import plan_rows
from roll_learners.sample import Sample
from roll_learners.segments import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A micro-batch on its way through the stages.

    Attributes:
        batch: The rows, and their N trained tokens; N may be 0.
        input_ids: int64[B, T], of this context-parallel process.
        position_ids: int64[1, T] of a packed row, else None.
        boundaries: int64[S + 1] of a packed row, else None.
        places: int64[n], the places in B * T of those states of this process that predict a trained token.
        chosen: int64[n], which of the N trained tokens these are; None if n is N.
    """

    batch: MicroBatch
    input_ids: Tensor
    position_ids: Tensor | None
    boundaries: Tensor | None
    places: Tensor
    chosen: Tensor | None


def make_feeds(
    samples: Sequence[Sample],
    layout: MegatronLayout,
    *,
    data: int,
    data_rank: int,
    context_rank: int,
    hidden: int,
    budget: int,
    packing: bool,
    device: str,
) -> list[Feed]:
    """The micro-batches of a replica, at least one; one without a trained token keeps in step with others.

    Args:
        samples: The same in all processes.
        layout: Of the processes.
        data: Replicas.
        data_rank: This one.
        context_rank: Of this process in its context-parallel group.
        hidden: Width of the model, for balancing.
        budget: Most tokens of a micro-batch, padding included.
        packing: Rows are laid back to back.
        device: Where tensors go.

    Raises:
        LearnerError: A sample alone is longer than the budget, or has media or recorded experts.
    """
    if any(sample.media is not None for sample in samples):
        raise LearnerError("megatron: a sample has media: models of text alone are converted")
    if any(sample.routed_experts is not None for sample in samples):
        raise LearnerError("megatron: a sample has routed_experts, which this back-end does not replay")
    rows = plan_rows(samples, budget=budget, sharing=None)
    multiple = layout.row_multiple
    lengths = np.array([-(-row.length // multiple) * multiple for row in rows], np.int64)

    def packed(own: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """Back to back."""
        return plan_token_batches(own, budget=budget)

    planned = plan_ranks(
        lengths,
        ranks=data,
        budget=budget,
        costs=sequence_costs(lengths, hidden_size=hidden),
        plan=packed if packing else None,
    )[data_rank]
    # The interleaved schedule takes as many micro-batches as stages at a time.
    step = layout.pipeline if layout.virtual_pipeline > 1 else 1
    count = max(1, -(-len(planned) // step)) * step
    feeds = []
    for own in [*planned, *[np.zeros(0, np.int64)] * (count - len(planned))]:
        batch, bounds = _nothing(multiple, device), None
        if len(own):
            chosen, width = [rows[r] for r in own.tolist()], int(lengths[own].max())
            batch = collate(samples, chosen, device=device, pad_to=width, packing=packing)
            bounds = [0, *np.cumsum([row.length for row in chosen]).tolist()] if packing else None
        feeds.append(_feed(batch, bounds, layout, context_rank))
    return feeds


def _feed(batch: MicroBatch, bounds: list[int] | None, layout: MegatronLayout, context_rank: int) -> Feed:
    device = batch.input_ids.device
    if bounds is not None:
        batch, bounds = _aligned(batch, bounds, layout.row_multiple)
    length = batch.input_ids.shape[1]
    own = context_places(length, context_rank, layout.context).to(device)
    places, chosen = batch.positions, None
    if layout.context > 1:
        local = torch.full((length,), -1, device=device)
        local[own] = torch.arange(len(own), device=device)
        within = local[batch.positions % length]
        chosen = torch.nonzero(within >= 0).flatten()
        places = (batch.positions // length * len(own) + within)[chosen]
    return Feed(
        batch=batch,
        input_ids=batch.input_ids[:, own],
        position_ids=None if bounds is None else batch.position_ids,
        boundaries=None if bounds is None else torch.tensor(bounds, device=device),
        places=places,
        chosen=chosen,
    )


def _aligned(batch: MicroBatch, bounds: list[int], multiple: int) -> tuple[MicroBatch, list[int]]:
    """A packed row filled up with a sample of pads to a multiple of this length."""
    length = batch.input_ids.shape[1]
    missing = -length % multiple
    if not missing or batch.position_ids is None:
        return batch, bounds
    ids, positions = F.pad(batch.input_ids, (0, missing)), F.pad(batch.position_ids, (0, missing))
    return replace(batch, input_ids=ids, position_ids=positions), [*bounds, length + missing]


def _nothing(length: int, device: str) -> MicroBatch:
    """One row of pads."""
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    return MicroBatch(
        members=np.zeros(0, np.int64),
        input_ids=torch.zeros(1, length, dtype=torch.int64, device=device),
        position_ids=None,
        attention_mask=None,
        positions=empty,
        targets=empty,
        segments=Segments.of_lengths(empty),
    )
