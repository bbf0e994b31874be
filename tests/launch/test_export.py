"""`roll-launch export` and `convert` write a model that is the same, or nothing."""

from pathlib import Path

import pytest
import torch
from roll_launch.cli import main
from roll_launch.export import SHARDS, ExportError, convert, export, model_of
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Qwen3MoeForCausalLM(config).eval()


@pytest.fixture
def directory(model: PreTrainedModel, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def logits(directory: Path) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = AutoModelForCausalLM.from_pretrained(directory)(torch.arange(8)[None]).logits
    return result


def test_a_model_is_the_same_after_shards_and_back(
    directory: Path, model: PreTrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(directory), str(tmp_path / "shards"), "--to", "fsdp2"]) == 0
    assert (tmp_path / "shards" / SHARDS / ".metadata").is_file()
    assert main(["export", str(tmp_path / "shards"), str(tmp_path / "again")]) == 0
    assert "logits of 16 tokens are equal" in capsys.readouterr().out
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "again"), model(torch.arange(8)[None]).logits)


def test_the_model_of_a_run_is_that_of_the_stage_that_wrote_last(directory: Path, tmp_path: Path) -> None:
    for stage in ("sft", "rlvr"):
        place = tmp_path / "run" / "stages" / stage
        place.mkdir(parents=True)
        (tmp_path / "run" / "config.yaml").touch()
        convert(directory, place / "model", to="huggingface")
    assert model_of(tmp_path / "run").parts[-2:] == ("rlvr", "model")
    assert model_of(tmp_path / "run", stage="sft").parts[-2:] == ("sft", "model")
    with pytest.raises(ExportError, match="no stage dpo has a model"):
        model_of(tmp_path / "run", stage="dpo")


def test_what_cannot_be_exported_is_said_and_nothing_is_written(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is there already"):
        export(directory, directory)
    with pytest.raises(ExportError, match="neither a run's directory nor that of a model"):
        export(tmp_path / "nowhere", tmp_path / "out")
    (directory / "model.safetensors").unlink()
    with pytest.raises(ExportError, match="cannot be read"):
        export(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert main(["export", str(directory), str(tmp_path / "out"), "a.b=1"]) == 2
