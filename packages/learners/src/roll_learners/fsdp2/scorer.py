"""Log-probs from a model in shards: every rank is given the whole batch, computes its share, and gets all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.balance import partition, sequence_costs
from roll_learners.batch import MicroBatch, scatter_tokens
from roll_learners.compute import ComputeSettings
from roll_learners.errors import LearnerError
from roll_learners.forward import EntropyUse, LogitsTerm, TokenScores
from roll_learners.fsdp2.layout import Sharding
from roll_learners.fsdp2.meshes import make_meshes
from roll_learners.fsdp2.passes import ScoringPass
from roll_learners.fsdp2.sharding import check_family, shard_model
from roll_learners.rows import plan_rows
from roll_learners.sample import Sample
from roll_learners.scoring import LocalScorer

PROBE = Sample.from_completion(np.zeros(1, np.int32), np.zeros(1, np.int32))
"""What a rank runs for nothing where others still have a micro-batch."""


class Fsdp2Scorer(LocalScorer):
    """A reference policy on several ranks. Every method is called on all of them with the same arguments, and
    returns the same on each."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        sharding: Sharding,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
    ) -> None:
        """Args:
        model: On the host, with the same values on every rank. It is sharded in place.
        sharding: The layout, and how it is computed.
        micro_batch_tokens: Most padded tokens in one pass of a rank.
        temperature: The one that completions are sampled with.
        device: This rank's.

        Raises:
            LearnerError: A setting is out of range, the layout does not fit the model or the process group,
                or the model's logits are not supported.
        """
        if sharding.offload and device == "cpu":
            raise LearnerError("fsdp2 offload on device cpu: everything is on the host already; leave it out")
        check_family(model, sharding.layout)
        super().__init__(
            model,
            micro_batch_tokens=micro_batch_tokens,
            temperature=temperature,
            device="cpu",
            compute=ComputeSettings(packing=sharding.packing),
        )
        self.device = device
        self.sharding = sharding
        self.meshes = make_meshes(sharding.layout, torch.device(device).type)
        self._budget = micro_batch_tokens
        self.root = ScoringPass(model, temperature, self.meshes.context)
        self.sharded = shard_model(model, self.root, self.meshes, sharding)

    def batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """This rank's micro-batches; where others have more, it runs passes over nothing in between.

        Raises:
            LearnerError: A sample is longer than micro_batch_tokens; on every rank.
        """
        own = self._share(samples)
        batches = list(super().batches([samples[i] for i in own]))
        count = torch.tensor(len(batches), device=self.device)
        dist.all_reduce(count, dist.ReduceOp.MAX, group=self.meshes.data)
        for batch in batches:
            yield dataclasses.replace(batch, members=own[batch.members])
        for _ in range(int(count.item()) - len(batches)):
            self._idle()

    def score(
        self,
        batch: MicroBatch,
        *,
        entropy: EntropyUse = "none",
        term: LogitsTerm | None = None,
        columns: Mapping[str, Tensor] | None = None,
    ) -> TokenScores:
        """The scores of a micro-batch's trained tokens, with gradient where that is enabled."""
        scores: TokenScores = self.root(batch, entropy, term, columns)
        return scores

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """Not there: raises LearnerError, since an objective would have to wait for other ranks."""
        raise LearnerError("fsdp2 gives no states: a KL over whole distributions needs the local learner")

    def gathered(self, mine: Any) -> list[Any]:
        """What each share of a batch has, in order of shares."""
        parts: list[Any] = [None] * self.sharding.layout.data
        dist.all_gather_object(parts, mine, group=self.meshes.data)
        return parts

    def _share(self, samples: Sequence[Sample]) -> npt.NDArray[np.int64]:
        """Positions of the samples that this rank computes; rows are dealt, so that prompts stay shared."""
        rows = plan_rows(samples, budget=self._budget, sharing=self._sharing)
        lengths = np.array([row.length for row in rows], np.int64)
        if len(rows) and lengths.max() > self._budget:
            raise LearnerError(
                f"a sample feeds {lengths.max()} tokens to the model, but micro_batch_tokens is "
                f"{self._budget}: raise it, or lower the limits on prompt and response"
            )
        width = int(self.model.config.get_text_config().hidden_size)
        dealt = partition(sequence_costs(lengths, hidden_size=width), self.sharding.layout.data)
        mine = [member for i in dealt[self.meshes.share] for member in rows[i].members]
        return np.array(sorted(mine), np.int64)

    def _idle(self) -> None:
        (batch,) = super().batches([PROBE])
        scores = self.score(batch)
        if torch.is_grad_enabled():
            torch.autograd.backward(scores.logprobs.sum() * 0.0)

    def _columns(
        self, samples: Sequence[Sample], compute: Callable[[MicroBatch], Tensor], *, width: tuple[int, ...]
    ) -> list[npt.NDArray[np.floating]]:
        with torch.no_grad():
            own = super()._columns(samples, compute, width=width)
        # Gathered for no gradient, the root's parameters would stay so, and miss what is loaded meanwhile.
        self.root.reshard()  # type: ignore[operator]  # of FSDPModule, which `fully_shard` makes it
        trained = [column[sample.response_mask] for column, sample in zip(own, samples, strict=True)]
        flat = torch.from_numpy(np.concatenate(trained) if trained else np.zeros(0, self.dtype))
        flat = flat.to(self.device)
        # Each token was scored by one share; the others hold zeros.
        dist.all_reduce(flat, group=self.meshes.data)
        return scatter_tokens(flat.cpu().numpy(), samples)
