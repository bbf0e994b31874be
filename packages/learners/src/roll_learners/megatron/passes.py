"""Micro-batches through the stages of a pipeline, forwards and backwards, by Megatron-Core's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from megatron.core.utils import unwrap_model
from torch import Tensor

from roll_learners.batch import Column, check_columns, gather_column, scatter_tokens
from roll_learners.errors import LearnerError
from roll_learners.megatron.architecture import Architecture
from roll_learners.megatron.feed import Feed, make_feeds
from roll_learners.megatron.groups import Groups
from roll_learners.megatron.model import DecoderModel
from roll_learners.objective import Metric, Terms
from roll_learners.sample import Sample
from roll_learners.segments import Totals

Target = TypeVar("Target", contravariant=True)
Result = TypeVar("Result")


class HeadRunner(Protocol[Target]):
    """What a head makes of the last stage's states."""

    def terms(
        self,
        part: DecoderModel,
        states: Tensor,
        feed: Feed,
        objective: Target,
        columns: Mapping[str, Tensor],
        totals: Totals,
    ) -> Terms:
        """The objective's loss and metrics of a micro-batch with N > 0 trained tokens."""
        ...

    def numbers(self, part: DecoderModel, states: Tensor, feed: Feed) -> Tensor:
        """[N], a number for each trained token, without gradient."""
        ...


class BatchOutcome(NamedTuple):
    """What one micro-batch leaves besides gradients.

    Attributes:
        members: int64[S], its samples.
        tokens: Trained tokens.
        loss: Its share of the mini-batch's; a micro-batch without a trained token has 0.
        metrics: Of the objective, on the CPU.
    """

    members: npt.NDArray[np.int64]
    tokens: int
    loss: Tensor
    metrics: Mapping[str, Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Runs this process's parts of a model; all processes call the same methods with the same arguments.

    Attributes:
        parts: Chunks of this stage, wrapped for data parallelism where they are trained.
        groups: Of this process.
        model: The architecture.
        micro_batch_tokens: Most tokens of a micro-batch.
        packing: Rows are laid back to back.
        dtype: Of columns and results.
    """

    parts: Sequence[torch.nn.Module]
    groups: Groups
    model: Architecture
    micro_batch_tokens: int
    packing: bool
    dtype: type[np.floating]

    def gradient(
        self,
        head: HeadRunner[Target],
        samples: Sequence[Sample],
        objective: Target,
        columns: Mapping[str, Column],
        totals: Totals,
    ) -> list[BatchOutcome] | None:
        """Leaves the summed gradient of all replicas in the parts.

        Args:
            head: What stands on the decoder.
            samples: The mini-batch.
            objective: Turns what the head gives into a loss.
            columns: One entry for each sample in each.
            totals: Denominators of the whole mini-batch.

        Returns:
            The micro-batches of this replica where this process speaks for it, else None.

        Raises:
            LearnerError: A column does not fit, or a sample is longer than a micro-batch may be.
        """
        check_columns(columns, samples)
        behavior = [s.behavior_logprobs for s in samples if s.behavior_logprobs is not None]
        if samples and len(behavior) == len(samples):
            columns = {"behavior_logprobs": behavior, **columns}
        for name, column in columns.items():  # in every process all of it, so that all raise or none
            if len(samples):
                gather_column(name, column, samples, np.arange(len(samples)))

        def last(part: DecoderModel, feed: Feed, states: Tensor) -> tuple[Tensor, Tensor, BatchOutcome]:
            """The loss, and what is kept of a micro-batch, in the last stage."""
            tokens = len(feed.batch.targets)
            if not tokens:
                # Collectives of the backward pass are met all the same.
                outcome = BatchOutcome(feed.batch.members, 0, torch.zeros(()), {})
                return (states * 0).sum().float(), _no_count(states), outcome
            terms = head.terms(part, states, feed, objective, self._gathered(columns, samples, feed), totals)
            metrics = {name: _on_cpu(each) for name, each in terms.metrics.items()}
            outcome = BatchOutcome(feed.batch.members, tokens, terms.loss.detach().cpu(), metrics)
            return terms.loss, _no_count(states), outcome

        return self._run(samples, last, forward_only=False)

    def numbers(self, head: HeadRunner[Any], samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """What the head gives for each trained token: an array [N] for each sample, 0 elsewhere.

        Args:
            head: What stands on the decoder.
            samples: Any.

        Raises:
            LearnerError: A sample is longer than a micro-batch may be.
        """
        result: list[npt.NDArray[np.floating]] = [np.zeros(len(s.token_ids), self.dtype) for s in samples]

        def last(
            part: DecoderModel, feed: Feed, states: Tensor, **_: object
        ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]:
            """Whose numbers they are, and the numbers, in the last stage."""
            if not len(feed.batch.targets):
                return feed.batch.members, np.zeros(0, self.dtype)
            flat = head.numbers(part, states, feed).cpu().numpy()
            return feed.batch.members, flat.astype(self.dtype, copy=False)

        with torch.no_grad():
            own = self._run(samples, last, forward_only=True)
        for computed in self.groups.gathered(own):
            for members, flat in computed or ():
                columns = scatter_tokens(flat, [samples[i] for i in members])
                for i, column in zip(members.tolist(), columns, strict=True):
                    result[i] = column
        return result

    def feeds(self, samples: Sequence[Sample]) -> list[Feed]:
        """The micro-batches of this replica."""
        return make_feeds(
            samples,
            self.groups.layout,
            data=self.groups.data,
            data_rank=self.groups.data_rank,
            context_rank=parallel_state.get_context_parallel_rank(),
            hidden=self.model.hidden,
            budget=self.micro_batch_tokens,
            packing=self.packing,
            device=self.groups.device,
        )

    def _run(
        self, samples: Sequence[Sample], last: Callable[..., Any], *, forward_only: bool
    ) -> list[Any] | None:
        self._check_tokens(samples)
        feeds = self.feeds(samples)

        def step(iterator: Iterator[Feed], part: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            """One micro-batch through one chunk of layers."""
            feed = next(iterator)
            states: Tensor = part(feed.input_ids, feed.position_ids, feed.boundaries)
            return states, partial(last, unwrap_model(part), feed)

        config = unwrap_model(self.parts[0]).config
        config.finalize_model_grads_func = _finalize
        iterators = [iter(feeds) for _ in self.parts]
        alone = len(self.parts) == 1
        stored: list[Any] = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iterators[0] if alone else iterators,
            model=self.parts[0] if alone else list(self.parts),
            num_microbatches=len(feeds),
            seq_length=1,  # not used: stages tell each other the shapes
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return stored if _speaks() else None

    def _check_tokens(self, samples: Sequence[Sample]) -> None:
        """Processes that share a vocabulary do not notice a token beyond it, for which none has a row."""
        for number, sample in enumerate(samples):
            ids = sample.token_ids
            if len(ids) and not (ids.min() >= 0 and ids.max() < self.model.vocabulary):
                raise LearnerError(
                    f"sample {number} has token ids from {ids.min()} to {ids.max()}: allowed are 0 to "
                    f"{self.model.vocabulary - 1}"
                )

    def _gathered(
        self, columns: Mapping[str, Column], samples: Sequence[Sample], feed: Feed
    ) -> dict[str, Tensor]:
        gathered = {
            name: gather_column(name, column, samples, feed.batch.members).astype(self.dtype, copy=False)
            for name, column in columns.items()
        }
        return {name: torch.from_numpy(each).to(self.groups.device) for name, each in gathered.items()}


def spread_over_context(values: Tensor, feed: Feed) -> Tensor:
    """[N], the numbers of all context-parallel processes; a gradient goes back to each one's own.

    Args:
        values: [n], of this process's trained tokens.
        feed: The micro-batch.
    """
    if feed.chosen is None:
        return values
    own = values.new_zeros(len(feed.batch.targets)).index_put((feed.chosen,), values)
    group = parallel_state.get_context_parallel_group()
    summed: Tensor = reduce_from_tensor_model_parallel_region(own, group=group)
    return summed


def _finalize(model: Sequence[torch.nn.Module], *_: object, **__: object) -> None:
    """Sums gradients over replicas; losses carry their denominators, so that nothing is divided."""
    finalize_model_grads(list(model), None)


def _speaks() -> bool:
    """Whether this process gives the results of its replica: one of the last stage."""
    return bool(
        parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
    )


def _no_count(states: Tensor) -> Tensor:
    """The library may divide by a number of tokens, which here is in the loss already."""
    return torch.zeros((), dtype=torch.int, device=states.device)


def _on_cpu(metric: Metric) -> Metric:
    return metric._replace(values=metric.values.detach().cpu())
