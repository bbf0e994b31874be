"""Attention signals of responses: a forward of a model of its own, which keeps no attention map.

Chosen layers recompute their attention for some response tokens at a time and reduce each head's rows to
sums at once; layers after the last chosen one, and the head, do not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roll_learners.advantages.rhythm import HeadSignals, choose_heads, head_signals
from roll_learners.errors import LearnerError
from roll_learners.rhythm import Rhythm
from roll_learners.sample import Sample

RECORDING = "roll_recording"
"""Name of the attention function that computes as sdpa does and lets a recorder look on."""

NUMBERS_AT_A_TIME = 2**25
"""Entries of attention rows (heads x tokens x tokens) that exist at a time: 128 MiB of float32."""


class SignalColumns(NamedTuple):
    """Attributes:
    waad: [N], of each token of a sample, 0 where it is not trained.
    fai: [N], likewise.
    """

    waad: npt.NDArray[np.floating]
    fai: npt.NDArray[np.floating]


class AttentionSource(Protocol):
    """Supplies the signals that `Rhythm` turns into weights."""

    def signals(self, samples: Sequence[Sample], rhythm: Rhythm) -> list[SignalColumns]:
        """The signals of each sample."""
        ...


class LocalAttention:
    """Signals from a causal language model on one device."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        layers: Sequence[int] | int = 5,
        numbers_at_a_time: int = NUMBERS_AT_A_TIME,
        device: str = "cpu",
    ) -> None:
        """Args:
        model: Moved to `device`; its attention function is exchanged, so it serves nothing else.
        layers: Layers whose heads count, from 0; a number takes so many, evenly spaced in the middle third.
        numbers_at_a_time: Bound of memory: entries of attention rows that exist at a time.
        device: A torch device.

        Raises:
            LearnerError: A layer that is not there, or a model whose attention cannot be exchanged.
        """
        model.to(device).eval()  # type: ignore[arg-type]  # transformers types `to` for a bound module
        self._model, self._device = model, device
        # transformers leaves the method untyped.
        self._decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        stack = dict(self._decoder.named_children()).get("layers")
        if not isinstance(stack, torch.nn.ModuleList) or not all(
            hasattr(each, "self_attn") for each in stack
        ):
            raise LearnerError(f"LocalAttention: {type(model).__name__} has no `layers` with a `self_attn`")
        count = len(stack)
        self.layers = middle_layers(count, layers) if isinstance(layers, int) else sorted(set(layers))
        if not self.layers or self.layers[0] < 0 or self.layers[-1] >= count:
            raise LearnerError(
                f"LocalAttention: layers {self.layers} of a model with layers 0 to {count - 1}"
            )
        if numbers_at_a_time < 1:
            raise LearnerError(f"LocalAttention: numbers_at_a_time is {numbers_at_a_time}: at least 1")
        self._numbers = numbers_at_a_time
        model.set_attn_implementation(RECORDING)
        probe = Sample.from_completion(np.array([0], np.int32), np.array([0], np.int32))
        if len(self._heads(probe, Rhythm(rule="local", nearest=0))) != len(self.layers):
            raise LearnerError(
                f"LocalAttention: {type(model).__name__} does not call the attention function of its "
                "configuration in every chosen layer"
            )

    def signals(self, samples: Sequence[Sample], rhythm: Rhythm) -> list[SignalColumns]:
        """The signals of each sample, zeros for one without a trained token."""
        return [self._columns(sample, rhythm) for sample in samples]

    def _columns(self, sample: Sample, rhythm: Rhythm) -> SignalColumns:
        waad, fai = (np.zeros(len(sample.token_ids), np.float32) for _ in range(2))
        if sample.response_tokens:
            layers = self._heads(sample, rhythm)
            heads = HeadSignals(*(torch.cat(parts) for parts in zip(*layers, strict=True)))
            chosen = choose_heads(heads, rhythm.heads)
            waad[sample.response_mask] = chosen.waad.float().cpu().numpy()
            fai[sample.response_mask] = chosen.fai.float().cpu().numpy()
        return SignalColumns(waad=waad, fai=fai)

    def _heads(self, sample: Sample, rhythm: Rhythm) -> list[HeadSignals]:
        """Of each chosen layer, in order."""
        responses = torch.from_numpy(np.flatnonzero(sample.response_mask)).to(self._device)
        recorders = [_Recorder(responses, rhythm, self._numbers) for _ in self.layers]
        attended = [self._decoder.layers[i].self_attn for i in self.layers]
        last = self._decoder.layers[self.layers[-1]]
        ids = torch.from_numpy(sample.token_ids.astype(np.int64)).to(self._device)[None]
        stop = last.register_forward_hook(_stop)
        _recorders.update(zip(attended, recorders, strict=True))
        try:
            with torch.no_grad():
                self._decoder(input_ids=ids, use_cache=False)
        except _LastLayerDone:
            pass
        finally:
            stop.remove()
            for module in attended:
                _recorders.pop(module, None)
        return [recorder.heads for recorder in recorders if recorder.heads is not None]


def middle_layers(count: int, chosen: int) -> list[int]:
    """Up to `chosen` layers, evenly spaced from a third to two thirds of `count`, from 0.

    Source: arXiv 2510.13554, section 4.1.
    """
    places = np.linspace(count / 3, 2 * count / 3, chosen)
    return sorted({min(count - 1, int(place)) for place in places})


class _LastLayerDone(Exception):
    """Ends a forward after the last layer that is needed."""


def _stop(*_: object) -> None:
    raise _LastLayerDone


class _Recorder:
    """Reduces the attention of one layer for one sample."""

    def __init__(self, responses: Tensor, rhythm: Rhythm, numbers: int) -> None:
        self._responses, self._rhythm, self._numbers = responses, rhythm, numbers
        self.heads: HeadSignals | None = None

    def record(self, rows: _Rows) -> None:
        """Takes in the attention of the response tokens, some at a time."""
        for chosen in torch.split(self._responses, rows.at_a_time(self._numbers)):
            part = head_signals(rows(chosen), chosen, self._responses, self._rhythm)
            if self.heads is not None:
                part = HeadSignals(*(a + b for a, b in zip(self.heads, part, strict=True)))
            self.heads = part


class _Rows(NamedTuple):
    """The attention of one sequence, of which some rows are made when they are asked for.

    Attributes:
        query: [H, T, D].
        key: [H or fewer, T, D], float32.
        mask: [1 or H, T, T], bool or additive, or None for causal.
        scaling: Of the scores.
        cap: Of the scores, or None.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scaling: float
    cap: float | None

    def __call__(self, chosen: Tensor) -> Tensor:
        """[H, C, T], float32, of the queries at these positions, int64[C]."""
        tokens, heads = self.key.shape[1], len(self.query)
        # Heads that share a key are rows of one product, so that keys are not repeated.
        queries = self.query[:, chosen].float().reshape(len(self.key), -1, self.key.shape[-1])
        scores = (queries @ self.key.transpose(1, 2)).view(heads, len(chosen), tokens) * self.scaling
        if self.cap is not None:
            scores = torch.tanh(scores / self.cap) * self.cap
        return scores.masked_fill(~_visible(self.mask, chosen, tokens), -torch.inf).softmax(-1)

    def at_a_time(self, numbers: int) -> int:
        """Queries whose rows hold about so many numbers."""
        return max(1, numbers // (self.query.shape[0] * self.query.shape[1]))

    def output(self, value: Tensor) -> Tensor:
        """[H, T, D], the attention's output for value[H or fewer, T, D]."""
        values = value.float()
        positions = torch.arange(self.query.shape[1], device=value.device)
        parts = torch.split(positions, self.at_a_time(NUMBERS_AT_A_TIME))
        outputs = []
        for chosen in parts:
            rows = self(chosen).view(len(value), -1, value.shape[1])
            outputs.append((rows @ values).view(len(self.query), len(chosen), -1))
        return torch.cat(outputs, 1).to(value.dtype)


def _visible(mask: Tensor | None, queries: Tensor, tokens: int) -> Tensor:
    """bool[1 or H, C, T], what the queries may attend to."""
    if mask is None:
        return (torch.arange(tokens, device=queries.device) <= queries[:, None])[None]
    rows = mask[:, queries, :tokens]
    return rows if rows.dtype == torch.bool else rows >= 0


_recorders: WeakKeyDictionary[torch.nn.Module, _Recorder] = WeakKeyDictionary()


def _recording_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of sdpa's function, which it calls in turn."""
    if arguments.get("s_aux") is not None:
        raise LearnerError(
            f"LocalAttention: {type(module).__name__} has attention sinks, which it does not know"
        )
    recorder = _recorders.get(module)
    if recorder is not None or softcap is not None:
        rows = _Rows(
            query=query[0],
            key=key[0].float(),
            mask=None if attention_mask is None else attention_mask[0],
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            cap=softcap,
        )
        if recorder is not None:
            recorder.record(rows)
        if softcap is not None:  # sdpa knows no cap
            return rows.output(value[0])[None].transpose(1, 2), None
    output: Tensor = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **arguments
    )[0]
    return output, None


AttentionInterface.register(RECORDING, _recording_attention)
AttentionMaskInterface.register(RECORDING, sdpa_mask)
