"""Hand-written cases of adapters, bound to `Adapter` and `LoraSettings`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from roll_learners import LoraSettings
from roll_learners.lora import Adapter, add_adapter
from transformers import Qwen3ForCausalLM

LINES = (Path(__file__).parents[1] / "data" / "cases" / "lora.jsonl").read_text().splitlines()
CASES = {case["id"]: case for case in map(json.loads, LINES)}
Make = Callable[..., Any]


def projection(make_model: Make, case: dict[str, Any]) -> tuple[Adapter, Any, Any]:
    """An adapter whose target has the case's matrices in its first rows and columns, zeros elsewhere."""
    model = make_model()
    weight, first, second = (torch.tensor(case[name], dtype=torch.float64) for name in ("W", "A", "B"))
    adapter = add_adapter(
        model,
        LoraSettings(rank=case["r"], alpha=case["alpha"], target_modules=("layers.0.self_attn.q_proj",)),
    )
    layer = model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        for target, value in (
            (layer.weight, weight),
            (layer.lora_A["default"].weight, first),
            (layer.lora_B["default"].weight, second),
        ):
            target.zero_()
            target[: value.shape[0], : value.shape[1]] = value
    return adapter, layer, weight


def merged(adapter: Adapter, size: torch.Tensor) -> torch.Tensor:
    found = dict(adapter.merged_weights())["model.layers.0.self_attn.q_proj.weight"]
    return found[: size.shape[0], : size.shape[1]]


def test_an_adapter_is_merged_with_its_scale(make_model: Make) -> None:
    case = CASES["g018"]
    adapter, _, weight = projection(make_model, case["input"])
    expected = torch.tensor(case["expected"]["W"], dtype=torch.float64)
    torch.testing.assert_close(merged(adapter, weight), expected, rtol=0, atol=case["expected"]["tol"])


@pytest.mark.parametrize("stabilised", [True, False])
def test_the_scale_has_a_root_if_it_is_rank_stabilised(make_model: Make, stabilised: bool) -> None:
    case = CASES["g019"]["input"]
    settings = LoraSettings(
        rank=case["r"], alpha=case["alpha"], rank_stabilised=stabilised, target_modules=("q_proj",)
    )
    expected = CASES["g019"]["expected"]["scale"] if stabilised else 2.0
    assert settings.scale == expected
    model = make_model()
    add_adapter(model, settings)
    assert model.model.layers[0].self_attn.q_proj.scaling["default"] == expected


def test_merging_twice_is_merging_once_and_leaves_the_weights(make_model: Make) -> None:
    case = CASES["g020"]
    adapter, layer, weight = projection(make_model, case["input"])
    first, second = merged(adapter, weight), merged(adapter, weight)
    assert first.tolist() == second.tolist() == case["expected"]["W_after_two_merge_calls"]
    assert layer.weight[:1, :1].tolist() == case["expected"]["W_after_unmerge"]


def test_an_adapter_on_one_side_of_a_tied_pair_unties_it(make_model: Make, tmp_path: Path) -> None:
    case = CASES["g021"]
    model = make_model(dtype=torch.float32, tied=case["input"]["tied"])
    before = model.model.embed_tokens.weight.detach().clone()
    adapter = add_adapter(model, LoraSettings(rank=2, target_modules=tuple(case["input"]["adapter_on"])))
    with torch.no_grad():
        model.lm_head.lora_B["default"].weight.fill_(0.1)
    adapter.save_merged(tmp_path)
    saved = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = case["expected"]
    assert torch.equal(saved.model.embed_tokens.weight, before) == expected["embedding_unchanged"]
    assert (not torch.equal(saved.lm_head.weight, before)) == expected["lm_head_changed"]
    assert saved.config.tie_word_embeddings == expected["saved_flag_tie_word_embeddings"]
    ids = torch.arange(6)[None]
    with torch.no_grad():
        same = torch.allclose(saved(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)
    assert same == expected["reload_equals_memory"]
