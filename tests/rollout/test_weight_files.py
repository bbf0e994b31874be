"""Updates and adapters as files: what engines of other processes read is what was sent."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from roll_rollout import AdapterConfig, AdapterUpdate, EngineError, WeightMismatch, WeightUpdate, pack_buckets
from roll_rollout.weight_files import directory_specs, write_adapter, write_update
from safetensors.torch import load_file

LORA = AdapterConfig(rank=2, alpha=8.0, target_modules=("q_proj",))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_written_update_is_read_back_bit_by_bit(dtype, model_maker, buckets_of, tmp_path):
    model_maker(0).save_pretrained(tmp_path)
    specs = directory_specs(tmp_path, dtype=dtype)
    other = model_maker(1, dtype=getattr(torch, dtype))
    (tmp_path / "new").mkdir()
    write_update(WeightUpdate(version=1, buckets=buckets_of(other)), specs, tmp_path / "new")
    loaded = {}
    for file in (tmp_path / "new").glob("*.safetensors"):
        loaded |= load_file(file)
    expected = {name: tensor for name, tensor in other.state_dict().items() if name != "lm_head.weight"}
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_tied_tensor_is_written_under_the_name_of_the_directory(model_maker, buckets_of, tmp_path):
    model_maker(0).save_pretrained(tmp_path)
    specs = directory_specs(tmp_path, dtype="float32")
    tied = [spec for spec in specs if len(spec.names) > 1]
    assert [spec.names for spec in tied] == [("model.embed_tokens.weight", "lm_head.weight")]
    swap = {"model.embed_tokens.weight": "lm_head.weight"}
    buckets = [
        replace(bucket, names=tuple(swap.get(name, name) for name in bucket.names))
        for bucket in buckets_of(model_maker(1))
    ]
    (tmp_path / "new").mkdir()
    write_update(WeightUpdate(version=1, buckets=tuple(buckets)), specs, tmp_path / "new")
    names = {name for file in (tmp_path / "new").glob("*.safetensors") for name in load_file(file)}
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_update_that_does_not_fit_leaves_no_file(model_maker, buckets_of, tmp_path):
    model_maker(0).save_pretrained(tmp_path)
    specs = directory_specs(tmp_path, dtype="bfloat16")
    (tmp_path / "new").mkdir()
    with pytest.raises(WeightMismatch, match=r"is float32.*the model has bfloat16"):
        write_update(WeightUpdate(version=1, buckets=buckets_of(model_maker(1))), specs, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_untied_model_has_every_name_once(model_maker, tmp_path):
    model_maker(0, tie_word_embeddings=False).save_pretrained(tmp_path)
    specs = directory_specs(tmp_path, dtype="float32")
    assert all(len(spec.names) == 1 for spec in specs)
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= {spec.names[0] for spec in specs}


def test_directory_without_weights_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"needs config.json and \*.safetensors"):
        directory_specs(tmp_path, dtype="float32")


def test_written_adapter_is_a_peft_directory(model_maker, adapter_maker, tmp_path):
    model_maker(0).save_pretrained(tmp_path)
    specs = directory_specs(tmp_path, dtype="float32")
    buckets, _ = adapter_maker(LORA, 1)
    (tmp_path / "new").mkdir()
    write_adapter(AdapterUpdate(name="a", version=1, config=LORA, buckets=buckets), specs, tmp_path / "new")
    loaded = load_file(tmp_path / "new" / "adapter_model.safetensors")
    for bucket in buckets:
        for name, _, shape, payload in bucket.tensors():
            assert tuple(loaded[name].shape) == shape
            assert np.array_equal(loaded[name].view(torch.uint8).numpy().reshape(-1), payload)
    config = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 8.0, ["q_proj"])


@pytest.mark.parametrize(
    ("config", "drop", "said"),
    [
        (replace(LORA, target_modules=("no_such",)), 0, "target_modules .* are not in the model"),
        (replace(LORA, rank=3), 0, r"is \[\d+, \d+\], needed is"),
        (replace(LORA, target_modules=("k_proj",)), 0, "is unknown to the model"),
        (LORA, 2, r"is missing \(2 are\)"),
    ],
)
def test_adapter_that_does_not_fit_leaves_no_file(config, drop, said, model_maker, adapter_maker, tmp_path):
    model_maker(0).save_pretrained(tmp_path)
    specs = directory_specs(tmp_path, dtype="float32")
    buckets, _ = adapter_maker(LORA, 1)
    tensors = [tensor for bucket in buckets for tensor in bucket.tensors()][drop:]
    packed = tuple(pack_buckets(tensors, max_bytes=2_000))
    update = AdapterUpdate(name="a", version=1, config=config, buckets=packed)
    (tmp_path / "new").mkdir()
    with pytest.raises(WeightMismatch, match=said):
        write_adapter(update, specs, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
