"""Log-probs and entropy at the trained tokens of a micro-batch, and nowhere else.

The decoder runs without its head; the head then runs over the hidden states of the N positions that
predict a trained token, in chunks, so that no [B, T, V] logits exist.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from roll_learners.batch import MicroBatch, collate
from roll_learners.errors import LearnerError
from roll_learners.losses.entropy import entropy_from
from roll_learners.rows import Row
from roll_learners.sample import Sample

EntropyUse = Literal["none", "metric", "gradient"]

LogitsTerm = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""From logits[n, V], before the temperature, and columns[n, ...] of some tokens to a number[n] each."""

LOGITS_PER_CHUNK = 2**25
"""Logits that exist at a time: 128 MiB of float32, about four times that while gradients are taken."""


class TokenScores(NamedTuple):
    """Attributes:
    logprobs: [N].
    entropy: [N], or None where it was not asked for.
    from_logits: [N], or None where there is no `LogitsTerm`.
    """

    logprobs: Tensor
    entropy: Tensor | None
    from_logits: Tensor | None = None


def score_tokens(
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    temperature: float,
    entropy: EntropyUse = "none",
    term: LogitsTerm | None = None,
    columns: Mapping[str, Tensor] | None = None,
    logits_per_chunk: int = LOGITS_PER_CHUNK,
) -> TokenScores:
    """The scores of the micro-batch's trained tokens under the distribution they are sampled from.

    Args:
        model: Any causal language model of transformers.
        batch: B rows, N trained tokens.
        temperature: Divides the logits.
        entropy: Whether entropy is computed, and whether gradient flows through it.
        term: A further number of each token, made while its logits exist.
        columns: What `term` needs of each token, [N, ...] each.
        logits_per_chunk: More logits than this are made chunk by chunk, twice if a gradient is taken.

    Returns:
        Scores in float32 (float64 from a float64 model).
    """
    states = token_states(model, batch)
    scoring = _Scoring(model, temperature, entropy, term)
    given = columns if columns is not None and term is not None else {}
    chunk = max(1, logits_per_chunk // int(model.config.get_text_config().vocab_size))
    if len(states) <= chunk:
        return scoring(states, batch.targets, given)
    parts: list[TokenScores] = []
    for first in range(0, len(states), chunk):
        piece = slice(first, first + chunk)
        arguments = (states[piece], batch.targets[piece], {key: given[key][piece] for key in given})
        if torch.is_grad_enabled():
            parts.append(
                checkpoint(scoring.__call__, *arguments, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            parts.append(scoring(*arguments))
    return TokenScores(
        logprobs=torch.cat([part.logprobs for part in parts]),
        entropy=_joined([part.entropy for part in parts]),
        from_logits=_joined([part.from_logits for part in parts]),
    )


def token_states(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """[N, H], the decoder's last states at the tokens before the trained ones, which predict them."""
    decoder, _ = _decoder_and_head(model)
    return decoder_states(decoder, batch)


def decoder_states(decoder: Any, batch: MicroBatch) -> Tensor:
    """[N, H], the last states of a decoder without a head at the tokens that predict the trained ones."""
    row_inputs = (
        {}
        if batch.attention_mask is None
        else {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    )
    states: Tensor = decoder(input_ids=batch.input_ids, use_cache=False, **row_inputs).last_hidden_state
    return states.reshape(-1, states.shape[-1])[batch.positions]


def head_logits(model: PreTrainedModel, states: Tensor) -> Tensor:
    """[N, V], the model's logits at states[N, H], at least float32, before any temperature."""
    logits = _head_logits(model, states)
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def check_model(model: PreTrainedModel) -> None:
    """Raises LearnerError if head(decoder(x)) is not what the model itself computes.

    A model may scale or cap its logits in a way this module does not know; training it would then
    work on another distribution than the one it samples from.
    """
    decoder, head = _decoder_and_head(model)
    if decoder is None or head is None:
        raise LearnerError(f"{type(model).__name__} has no decoder with a language-model head")
    ids = torch.arange(4, device=model.device).unsqueeze(0) % int(model.config.get_text_config().vocab_size)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits.double()
        states = decoder(input_ids=ids, use_cache=False).last_hidden_state
        got = _head_logits(model, states).double()
    if not _agree(expected, got, model.dtype):
        raise LearnerError(
            f"{type(model).__name__} changes its logits after the head in a way that is not supported: "
            "scaling and soft caps of Gemma, Granite and Cohere are"
        )


def runs_shared_rows(model: PreTrainedModel) -> bool:
    """Whether the model gives a token the same state in a shared row as in a row of its own.

    It is tried on two samples with one prompt. Not tried are models that look back through a window
    or a recurrence, and attention kernels that take no mask.
    """
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None) or ()
    windowed = getattr(config, "sliding_window", None) is not None and not layers
    decoder, _ = _decoder_and_head(model)
    takes = inspect.signature(decoder.forward).parameters.keys()
    if windowed or set(layers) - {"full_attention"} or not {"attention_mask", "position_ids"} <= takes:
        return False
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return False
    samples = [
        Sample.from_completion(np.array([0, 1], np.int32), np.array(response, np.int32) % config.vocab_size)
        for response in ((2, 3, 4), (5, 6))
    ]
    alone, shared = (
        [collate(samples, [row], device=str(model.device)) for row in rows]
        for rows in (
            [Row(members=(0,), prompt=2, length=4), Row(members=(1,), prompt=2, length=3)],
            [Row(members=(0, 1), prompt=2, length=5)],
        )
    )
    with torch.no_grad():
        expected, got = (
            torch.cat([decoder_states(decoder, batch).double() for batch in batches])
            for batches in (alone, shared)
        )
    return _agree(expected, got, model.dtype)


def _agree(expected: Tensor, got: Tensor, dtype: torch.dtype) -> bool:
    """Whether two results differ by no more than rounding; norms are float32 whatever the dtype."""
    tolerance = max(1e-4, 8 * torch.finfo(dtype).eps)
    return bool((expected - got).norm() <= tolerance * expected.norm())


class _Scoring(NamedTuple):
    """What is computed at each state; called once for all of them or once a chunk."""

    model: PreTrainedModel
    temperature: float
    entropy: EntropyUse
    term: LogitsTerm | None

    def __call__(self, states: Tensor, targets: Tensor, columns: Mapping[str, Tensor]) -> TokenScores:
        raw = head_logits(self.model, states)
        logits = raw / self.temperature if self.temperature != 1.0 else raw
        normaliser = logits.logsumexp(-1)
        logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
        entropy = None
        if self.entropy == "metric":
            entropy = entropy_from(logits.detach(), normaliser.detach())
        elif self.entropy == "gradient":
            entropy = entropy_from(logits, normaliser)
        return TokenScores(
            logprobs=logprobs,
            entropy=entropy,
            from_logits=None if self.term is None else self.term(raw, columns),
        )


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _head_logits(model: PreTrainedModel, states: Tensor) -> Tensor:
    _, head = _decoder_and_head(model)
    logits: Tensor = head(states)
    config = model.config.get_text_config()
    if scaling := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / scaling
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
        logits = torch.tanh(logits / cap) * cap
    return logits


def _decoder_and_head(model: PreTrainedModel) -> tuple[Any, Any]:
    # transformers leaves both methods untyped.
    return model.get_decoder(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
