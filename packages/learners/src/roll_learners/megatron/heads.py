"""What stands on a decoder of Megatron-Core: scores of the next token, or values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from megatron.core import parallel_state
from torch import Tensor

from roll_learners.forward import EntropyUse, LogitsTerm, TokenScores
from roll_learners.megatron.feed import Feed
from roll_learners.megatron.model import DecoderModel
from roll_learners.megatron.passes import spread_over_context
from roll_learners.megatron.vocabulary import HeadScores, VocabularyPiece
from roll_learners.objective import Objective, Terms, TokenBatch
from roll_learners.segments import Totals
from roll_learners.value_objective import ValueBatch, ValueTarget


class LanguageRunner(NamedTuple):
    """Log-probs, entropies and terms of trained tokens.

    Attributes:
        vocabulary: Tokens.
        temperature: Divides the logits.
    """

    vocabulary: int
    temperature: float

    def terms(
        self,
        part: DecoderModel,
        states: Tensor,
        feed: Feed,
        objective: Objective,
        columns: Mapping[str, Tensor],
        totals: Totals,
    ) -> Terms:
        """See `roll_learners.megatron.passes.HeadRunner`."""
        scores = self._scores(part, states, feed, objective.entropy, objective.logits_term, columns)
        return objective.terms(
            TokenBatch(
                logprobs=scores.logprobs,
                entropy=scores.entropy,
                from_logits=scores.from_logits,
                segments=feed.batch.segments,
                totals=totals,
                columns=columns,
            )
        )

    def numbers(self, part: DecoderModel, states: Tensor, feed: Feed) -> Tensor:
        """Log-probs."""
        return self._scores(part, states, feed, "none", None, {}).logprobs

    def _scores(
        self,
        part: DecoderModel,
        states: Tensor,
        feed: Feed,
        entropy: EntropyUse,
        term: LogitsTerm | None,
        columns: Mapping[str, Tensor],
    ) -> TokenScores:
        weight = part.output_layer.weight
        if part.share_embeddings_and_output_weights:
            weight = part.shared_embedding_or_output_weight()
        head = HeadScores(
            weight=weight,
            piece=VocabularyPiece.of_group(parallel_state.get_tensor_model_parallel_group(), self.vocabulary),
            copied=not part.config.sequence_parallel,
            temperature=self.temperature,
            entropy=entropy,
            term=term,
        )
        targets, chosen = feed.batch.targets, feed.chosen
        if chosen is not None:
            targets, columns = targets[chosen], {name: column[chosen] for name, column in columns.items()}
        own = head.scores(part.token_states(states, feed.places, replicated=False), targets, columns)
        return TokenScores(
            logprobs=spread_over_context(own.logprobs, feed),
            entropy=None if own.entropy is None else spread_over_context(own.entropy, feed),
            from_logits=None if own.from_logits is None else spread_over_context(own.from_logits, feed),
        )


class ValueRunner:
    """The value before each trained token."""

    def terms(
        self,
        part: DecoderModel,
        states: Tensor,
        feed: Feed,
        objective: ValueTarget,
        columns: Mapping[str, Tensor],
        totals: Totals,
    ) -> Terms:
        """See `roll_learners.megatron.passes.HeadRunner`."""
        values = self.numbers(part, states, feed)
        return objective.terms(
            ValueBatch(values=values, segments=feed.batch.segments, totals=totals, columns=columns)
        )

    def numbers(self, part: DecoderModel, states: Tensor, feed: Feed) -> Tensor:
        """Values."""
        values: Tensor = part.score(part.token_states(states, feed.places, replicated=True))
        wide = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
        return spread_over_context(wide, feed)
