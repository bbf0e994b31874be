"""Weights under a checkpoint's names, and files of them that transformers reads."""

import json
from pathlib import Path

import pytest
import torch
from group_run import make_model
from roll_learners.fsdp2.export import INDEX, hugging_face_names, write_hugging_face
from transformers import AutoModelForCausalLM, PreTrainedModel


def weights(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    seen: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        seen.setdefault(id(tensor), (name, tensor.detach()))
    return list(seen.values())


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("file_bytes", [10**9, 4000])
def test_what_is_written_is_the_model(tmp_path: Path, kind: str, file_bytes: int) -> None:
    model = make_model(kind).eval()
    tensors = hugging_face_names(model, weights(model))
    write_hugging_face(model, tensors, tmp_path, write=True, file_bytes=file_bytes)
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.arange(12).unsqueeze(0)
    assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    if file_bytes == 4000:
        assert len(files) > 1
        assert set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values()) == set(files)
    else:
        assert files == ["model.safetensors"]


def test_an_experts_matrices_are_apart_in_a_checkpoint() -> None:
    model = make_model("moe")
    names = [name for name, _ in hugging_face_names(model, weights(model))]
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in names
    assert len(names) == len(set(names))


def test_a_rank_that_does_not_write_only_takes_part(tmp_path: Path) -> None:
    model = make_model()
    taken = []

    def counted():
        for name, tensor in weights(model):
            taken.append(name)
            yield name, tensor

    write_hugging_face(model, counted(), tmp_path / "model", write=False)
    assert len(taken) == len(weights(model))
    assert not (tmp_path / "model").exists()
