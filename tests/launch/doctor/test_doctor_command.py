"""`roll-launch doctor logprobs` on a configuration and on a run directory."""

import json
from pathlib import Path

import pytest
from roll_launch.cli import main
from roll_launch.run_directory import RunDirectory
from roll_launch.tasks.sort_letters import write_files

CONFIG = """
name: test
runtime: local
directory: {root}/runs
stages:
  - name: rlvr
    pipeline: rlvr
    model:
      source: random
      architecture: qwen3
      config: {{hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
               head_dim: 8, intermediate_size: 48, max_position_embeddings: 128, tie_word_embeddings: true}}
      tokenizer: {root}/task/tokenizer
    data: {{source: jsonl, path: {root}/task/train.jsonl}}
    algorithm: {{preset: grpo}}
    rollout:
      engine: {{kind: transformers, max_batch: 16, threads: 1}}
      group_size: 4
      prompts_per_step: 2
      max_prompt_tokens: 32
      sampling: {{max_tokens: 12}}
    rewards: {{grader: {{name: exact, options: {{after: ";"}}}}, overlong: {{buffer_tokens: 10}}}}
    learner: {{threads: 1, optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "task").mkdir()
    write_files(tmp_path / "task", seed=0, demonstrations=8, train=32, heldout=8)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(root=tmp_path))
    return path


def test_configuration_whose_parts_agree_is_said_to_be_well(config, tmp_path, capsys):
    found = tmp_path / "found.json"
    assert main(["doctor", "logprobs", str(config), "--json", str(found)]) == 0
    assert "no mismatch" in capsys.readouterr().out
    report = json.loads(found.read_text())
    assert report["cause"] is None
    assert report["stage"] == "rlvr"
    assert report["checks"][0]["name"] == "engine and learner"
    assert report["checks"][0]["gap"]["largest"] < 1e-3


def test_dtype_of_a_configuration_is_examined_with_overrides(config, capsys):
    overrides = ["stages.rlvr.model.dtype=bfloat16", "stages.rlvr.rollout.sync_tolerance=0.00001"]
    assert main(["doctor", "logprobs", str(config), *overrides]) == 1
    assert "cause: dtype" in capsys.readouterr().out


def test_stage_that_is_not_there_is_named(config, capsys):
    assert main(["doctor", "logprobs", str(config), "--stage", "sft"]) == 2
    assert "--stage is 'sft'; allowed are rlvr" in capsys.readouterr().err


@pytest.mark.slow
def test_run_is_examined_with_the_weights_it_ended_with(config, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["run", str(config), "--run-dir", str(run)]) == 0
    capsys.readouterr()
    assert main(["doctor", "logprobs", str(run)]) == 0
    out, err = capsys.readouterr()
    assert "logged by the run: " in out
    assert str(RunDirectory(root=run).model("rlvr")) in err
    report = json.loads((run / "doctor" / "logprobs.json").read_text())
    assert report["cause"] is None
    assert set(report["logged"]) == {f"training/rollout_probs_diff_{name}" for name in ("max", "mean", "std")}
