"""Which tensors of Hugging Face make which of Megatron-Core: the whole conversion, as a table. Torch-free.

Every Hugging Face tensor is divided along one of its dimensions, evenly over the tensor-parallel processes,
and the pieces of one process are then fused; so that a process reads, and sends, its own pieces alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from roll_learners.megatron.architecture import Architecture

Head = Literal["language", "value"]
"""What stands on the decoder: scores of the next token, or one number."""

Fusion = Literal["none", "stacked", "heads"]
"""Of a process's pieces: there is one; one below the other; or queries, key and value of each head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Hugging Face tensor: its name, its shape, and the dimension that is divided (None: it is not)."""

    name: str
    shape: tuple[int, ...]
    divided: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A tensor of Megatron-Core and what it is made of.

    Attributes:
        target: Its name in the model, with `{layer}` and `{expert}` for local numbers.
        sources: What it is made of, in this order.
        fusion: How.
        layer: The layer, counted from 0 in the whole model; None outside of layers.
        expert: The expert, counted likewise.
        place: Which end of the pipeline holds it; None for those of layers.
        padded: Its rows are filled up with zeros to a multiple of the tensor-parallel size.
    """

    target: str
    sources: tuple[Source, ...]
    fusion: Fusion = "none"
    layer: int | None = None
    expert: int | None = None
    place: Literal["first", "last"] | None = None
    padded: bool = False


def rules(model: Architecture, head: Head) -> Iterator[Rule]:
    """All tensors of the model, in the order of its layers; a tied head is not among them.

    Args:
        model: The architecture.
        head: What stands on the decoder.
    """
    vocabulary = (model.vocabulary, model.hidden)
    embedding = Source(name="model.embed_tokens.weight", shape=vocabulary, divided=0)
    yield Rule(target="embedding.word_embeddings.weight", sources=(embedding,), place="first", padded=True)
    for layer in range(model.layers):
        for rule in (*_attention(model), *(_mixture(model) if model.experts else _dense(model))):
            yield _in_layer(rule, layer)
    norm = Source(name="model.norm.weight", shape=(model.hidden,))
    yield Rule(target="decoder.final_layernorm.weight", sources=(norm,), place="last")
    if head == "value":
        for name, shape in (("weight", (1, model.hidden)), ("bias", (1,))):
            score = Source(name=f"score.{name}", shape=shape)
            yield Rule(target=f"score.{name}", sources=(score,), place="last")
    elif not model.tied:
        lm_head = Source(name="lm_head.weight", shape=vocabulary, divided=0)
        yield Rule(target="output_layer.weight", sources=(lm_head,), place="last", padded=True)


def tied_head(model: Architecture) -> Rule:
    """The copy of the embedding that the last of several stages keeps as its head."""
    embedding = next(rules(model, "language"))
    return replace(embedding, target="output_layer.weight", place="last")


def _in_layer(rule: Rule, layer: int) -> Rule:
    sources = tuple(replace(s, name=f"model.layers.{layer}.{s.name}") for s in rule.sources)
    return replace(rule, target=f"decoder.layers.{{layer}}.{rule.target}", sources=sources, layer=layer)


def _attention(model: Architecture) -> Iterator[Rule]:
    hidden, queries, keys = model.hidden, model.heads * model.head, model.groups * model.head
    yield _whole("input_layernorm.weight", "input_layernorm.weight", hidden)
    rows = {"q": queries, "k": keys, "v": keys}
    weights = tuple(
        Source(name=f"self_attn.{part}_proj.weight", shape=(size, hidden), divided=0)
        for part, size in rows.items()
    )
    yield Rule(target="self_attention.linear_qkv.weight", sources=weights, fusion="heads")
    if model.qkv_bias:
        biases = tuple(
            Source(name=f"self_attn.{part}_proj.bias", shape=(size,), divided=0)
            for part, size in rows.items()
        )
        yield Rule(target="self_attention.linear_qkv.bias", sources=biases, fusion="heads")
    if model.qk_norm:
        yield _whole("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", model.head)
        yield _whole("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", model.head)
    output = Source(name="self_attn.o_proj.weight", shape=(hidden, queries), divided=1)
    yield Rule(target="self_attention.linear_proj.weight", sources=(output,))
    yield _whole("pre_mlp_layernorm.weight", "post_attention_layernorm.weight", hidden)


def _dense(model: Architecture) -> Iterator[Rule]:
    yield from _gated("mlp", "mlp", model.hidden, model.intermediate)


def _mixture(model: Architecture) -> Iterator[Rule]:
    router = Source(name="mlp.gate.weight", shape=(model.experts, model.hidden))
    yield Rule(target="mlp.router.weight", sources=(router,))
    for expert in range(model.experts):
        target, source = "mlp.experts.local_experts.{expert}", f"mlp.experts.{expert}"
        for rule in _gated(target, source, model.hidden, model.expert_intermediate):
            yield replace(rule, expert=expert)


def _gated(target: str, source: str, hidden: int, width: int) -> Iterator[Rule]:
    up = tuple(
        Source(name=f"{source}.{part}_proj.weight", shape=(width, hidden), divided=0)
        for part in ("gate", "up")
    )
    down = Source(name=f"{source}.down_proj.weight", shape=(hidden, width), divided=1)
    yield Rule(target=f"{target}.linear_fc1.weight", sources=up, fusion="stacked")
    yield Rule(target=f"{target}.linear_fc2.weight", sources=(down,))


def _whole(target: str, source: str, size: int) -> Rule:
    return Rule(target=target, sources=(Source(name=source, shape=(size,)),))
