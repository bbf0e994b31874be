"""The table of the conversion and the cutting of pieces, without Megatron-Core."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from roll_learners import LearnerError
from roll_learners.megatron import DirectoryWeights, ModelWeights, read_architecture
from roll_learners.megatron.context import context_places
from roll_learners.megatron.pieces import filled, fused, parted, piece_bounds
from roll_learners.megatron.rules import rules, tied_head
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SIZES: dict[str, Any] = dict(
    vocab_size=25,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def model(family: str, *, tied: bool) -> PreTrainedModel:
    kinds = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}
    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8} if "moe" in family else {}
    build: Any = AutoModelForCausalLM.from_config
    made: PreTrainedModel = build(kinds[family](**SIZES, **more, tie_word_embeddings=tied))
    return made


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_the_table_names_every_tensor_of_a_checkpoint_once(family: str, tied: bool, tmp_path: Path) -> None:
    made = model(family, tied=tied)
    made.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    architecture = read_architecture(json.loads((tmp_path / "config.json").read_text()))
    sources = [source for rule in rules(architecture, "language") for source in rule.sources]
    assert sorted(source.name for source in sources) == sorted(saved)
    assert all(source.shape == tuple(saved[source.name].shape) for source in sources)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_model_in_memory_reads_as_its_directory_does(family: str, tmp_path: Path) -> None:
    made = model(family, tied=False)
    made.save_pretrained(tmp_path, max_shard_size="10KB")
    directory, memory = DirectoryWeights(tmp_path), ModelWeights(made)
    for rule in rules(read_architecture(made.config.to_dict()), "language"):
        for source in rule.sources:
            dimension = source.divided or 0
            half = source.shape[dimension] // 2
            pieces = [each.read(source.name, dimension, half, 2 * half) for each in (directory, memory)]
            assert torch.equal(*pieces)
            assert directory.shape(source.name) == memory.shape(source.name) == source.shape


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    made = model("qwen3", tied=True)
    with pytest.raises(LearnerError, match="no tensor 'nothing'"):
        ModelWeights(made).shape("nothing")
    made.save_pretrained(tmp_path)
    with pytest.raises(LearnerError, match="no tensor 'nothing'"):
        DirectoryWeights(tmp_path).shape("nothing")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LearnerError, match=r"neither model\.safetensors nor"):
        DirectoryWeights(tmp_path)


def test_heads_are_fused_group_by_group_and_parted_again() -> None:
    # Two groups, each with two query heads of width 1.
    query, key, value = torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20]), torch.tensor([100.0, 200])
    made = fused([query, key, value], "heads", 2)
    assert made.tolist() == [1, 2, 10, 100, 3, 4, 20, 200]
    again = parted(made, "heads", 2, [4, 2, 2])
    assert all(torch.equal(a, b) for a, b in zip(again, (query, key, value), strict=True))


def test_gate_and_up_are_stacked_within_a_process() -> None:
    gate, up = torch.arange(4.0).view(2, 2), -torch.arange(4.0).view(2, 2)
    made = fused([gate, up], "stacked", 1)
    assert torch.equal(made, torch.cat([gate, up]))
    assert all(torch.equal(a, b) for a, b in zip(parted(made, "stacked", 1, [2, 2]), (gate, up), strict=True))


def test_a_padded_dimension_leaves_the_last_process_less() -> None:
    bounds = [piece_bounds(25, rank, 4, padded=True) for rank in range(4)]
    assert bounds == [(0, 7), (7, 14), (14, 21), (21, 25)]
    assert filled(torch.ones(4, 2), 7).sum(1).tolist() == [2, 2, 2, 2, 0, 0, 0]


def test_the_tied_head_is_the_embedding() -> None:
    architecture = read_architecture(model("qwen3", tied=True).config.to_dict())
    rule = tied_head(architecture)
    assert (rule.target, rule.sources[0].name, rule.place) == (
        "output_layer.weight",
        "model.embed_tokens.weight",
        "last",
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_context_parallel_processes_hold_every_token_once_and_as_much_attention(ranks: int) -> None:
    length = 4 * ranks
    places = [context_places(length, rank, ranks) for rank in range(ranks)]
    assert sorted(torch.cat(places).tolist()) == list(range(length))
    assert len({int(each.sum()) for each in places}) == 1
