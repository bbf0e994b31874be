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
from roll_learners.fused_head import LogitsRule, linear_logprobs
from roll_learners.losses.entropy import entropy_from
from roll_learners.packed_attention import PACKED
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
    slopes: Tensor | None = None,
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
        slopes: [N], the derivative of the loss by each log-prob, if it is known; see `linear_logprobs`.
        logits_per_chunk: More logits than this are made chunk by chunk, twice if a gradient is taken; of a
            plain linear head without `term`, more than an eighth of it tile by tile (`linear_logprobs`).

    Returns:
        Scores in float32 (float64 from a float64 model).
    """
    states = token_states(model, batch)
    many = len(states) * int(model.config.get_text_config().vocab_size) > logits_per_chunk // 8
    if term is None and many and (head := _plain_head(model)) is not None:
        return _fused_scores(model, states, batch.targets, head, temperature, entropy, slopes)
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
    """[N, H], the decoder's last states at the tokens before the trained ones, which predict them.

    Raises:
        LearnerError: A sample has media that the model does not take.
    """
    if batch.media is None:
        decoder, _ = _decoder_and_head(model)
        return decoder_states(decoder, batch)
    taken = inspect.signature(model.base_model.forward).parameters.keys()
    if unknown := sorted(batch.media.keys() - taken):
        raise LearnerError(
            f"a sample has media {', '.join(unknown)}, which {type(model.base_model).__name__} does not take"
        )
    media = {
        name: tensor.to(model.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in batch.media.items()
    }
    output = model.base_model(input_ids=batch.input_ids, use_cache=False, **media)
    states: Tensor = output.last_hidden_state
    return states.reshape(-1, states.shape[-1])[batch.positions]


def decoder_states(decoder: Any, batch: MicroBatch) -> Tensor:
    """[N, H], the last states of a decoder without a head at the tokens that predict the trained ones."""
    row_inputs: dict[str, object] = {}
    if batch.packed is not None:
        # A mask of four dimensions is passed on as it is, and none of T x T is made; attention ignores it.
        nothing = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=batch.input_ids.device)
        row_inputs = {"attention_mask": nothing, "packed_rows": batch.packed}
    elif batch.attention_mask is not None:
        row_inputs = {"attention_mask": batch.attention_mask}
    if batch.position_ids is not None:
        row_inputs["position_ids"] = batch.position_ids
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
    windowed = getattr(config, "sliding_window", None) is not None and not _layer_types(model)
    decoder, _ = _decoder_and_head(model)
    takes = inspect.signature(decoder.forward).parameters.keys()
    if windowed or _layer_types(model) - {"full_attention"}:
        return False
    if not {"attention_mask", "position_ids"} <= takes:
        return False
    if getattr(config, "_attn_implementation", None) not in ("sdpa", PACKED):
        return False
    return _same_states(model, [Row(members=(0, 1), prompt=2, length=5)], packing=False)


def use_packed_rows(model: PreTrainedModel) -> None:
    """Exchanges the model's attention function for one that runs packed rows as well.

    Raises:
        LearnerError: Layers of the model carry state, or look through a window, over the boundaries of packed
            samples; or its attention cannot be exchanged. The model is then as it was.
    """
    kind, before = type(model).__name__, getattr(model.config, "_attn_implementation", None)
    carrying = sorted(_layer_types(model) - {"full_attention"})
    if carrying:
        raise LearnerError(
            f"packing: {kind} has layers of type {', '.join(carrying)}, which would carry state from one "
            "packed sample into the next: set packing to false"
        )
    cause: Exception | None = None
    try:
        model.set_attn_implementation(PACKED)
        rows = [Row(members=(1,), prompt=2, length=3), Row(members=(0,), prompt=2, length=4)]
        same = _same_states(model, rows, packing=True)
    # Architectures refuse an attention function, or an argument for it, in ways of their own.
    except (ValueError, TypeError, RuntimeError) as error:
        same, cause = False, error
    if not same:
        model.set_attn_implementation(before or "sdpa")
        raise LearnerError(
            f"packing: {kind} gives a token another state in a packed row than in a row of its own: "
            "set packing to false"
        ) from cause


def _layer_types(model: PreTrainedModel) -> set[str]:
    """Kinds of layers by transformers' names; empty if the configuration does not tell."""
    config = model.config.get_text_config()
    return set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())


def _same_states(model: PreTrainedModel, rows: list[Row], *, packing: bool) -> bool:
    """Whether two samples with one prompt have the states in these rows that each has in its own."""
    vocabulary = model.config.get_text_config().vocab_size
    samples = [
        Sample.from_completion(np.array([0, 1], np.int32), np.array(response, np.int32) % vocabulary)
        for response in ((2, 3, 4), (5, 6))
    ]
    decoder, _ = _decoder_and_head(model)
    device = str(model.device)
    alone = [
        collate(samples, [row], device=device)
        for row in (Row(members=(0,), prompt=2, length=4), Row(members=(1,), prompt=2, length=3))
    ]
    together = collate(samples, rows, device=device, packing=packing)
    with torch.no_grad():
        expected = [decoder_states(decoder, batch).double() for batch in alone]
        got = torch.split(decoder_states(decoder, together).double(), together.segments.lengths.tolist())
    placed = {int(i): part for i, part in zip(together.members, got, strict=True)}
    return all(_agree(each, placed[i], model.dtype) for i, each in enumerate(expected))


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


def _plain_head(model: PreTrainedModel) -> torch.nn.Linear | None:
    """The head, if its product is all that it computes and its weight is whole."""
    _, head = _decoder_and_head(model)
    plain = type(head) is torch.nn.Linear and not head._forward_hooks and not head._forward_pre_hooks
    return head if plain and type(head.weight) in (Tensor, torch.nn.Parameter) else None


def _fused_scores(
    model: PreTrainedModel,
    states: Tensor,
    targets: Tensor,
    head: torch.nn.Linear,
    temperature: float,
    entropy: EntropyUse,
    slopes: Tensor | None,
) -> TokenScores:
    """As `_Scoring`, without the logits."""
    weight: Tensor = head.weight
    bias: Tensor | None = head.bias
    if torch.is_autocast_enabled(states.device.type):
        kind = torch.get_autocast_dtype(states.device.type)
        states, weight, bias = states.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    with torch.autocast(states.device.type, enabled=False):
        logprobs, entropies = linear_logprobs(
            states,
            weight,
            targets,
            bias=bias,
            rule=_logits_rule(model, temperature),
            entropy=entropy != "none",
            slopes=slopes if entropy == "none" and torch.is_grad_enabled() else None,
        )
    if entropies is not None and entropy == "metric":
        entropies = entropies.detach()
    return TokenScores(logprobs=logprobs, entropy=entropies)


def _logits_rule(model: PreTrainedModel, temperature: float) -> LogitsRule:
    config = model.config.get_text_config()
    return LogitsRule(
        scale=(getattr(config, "logit_scale", None) or 1.0)
        / (getattr(config, "logits_scaling", None) or 1.0),
        cap=getattr(config, "final_logit_softcapping", None),
        temperature=temperature,
    )


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _head_logits(model: PreTrainedModel, states: Tensor) -> Tensor:
    _, head = _decoder_and_head(model)
    logits: Tensor = head(states)
    rule = _logits_rule(model, 1.0)
    if rule.scale != 1.0:
        logits = logits * rule.scale
    return logits if rule.cap is None else torch.tanh(logits / rule.cap) * rule.cap


def _decoder_and_head(model: PreTrainedModel) -> tuple[Any, Any]:
    # transformers leaves both methods untyped.
    return model.get_decoder(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
