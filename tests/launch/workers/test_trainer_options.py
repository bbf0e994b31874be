"""What `learner:` says of precision, memory and adapters reaches the learner, and survives a resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roll_launch.config import ConfigError, PolicyLearnerConfig, RunConfig, load_text
from roll_launch.export import export
from roll_launch.models import ModelError, adapted_model, load_model
from roll_launch.roles import ModelSpec, TrainerSpec
from roll_launch.tasks.sort_letters import write_files
from roll_launch.workers.trainer import TrainerWorker
from roll_learners import LocalScorer, Sample
from roll_learners.algorithm import KlPenalty, make_algorithm
from roll_rollout import Completion

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
}
LORA = {"rank": 4, "alpha": 8, "target_modules": ("q_proj", "down_proj")}


@pytest.fixture
def make_spec(tmp_path: Path) -> Any:
    write_files(tmp_path, seed=0, demonstrations=1, train=2, heldout=1)

    def make(dtype: str = "float32", **learner: object) -> TrainerSpec:
        return TrainerSpec(
            model=ModelSpec(
                path=None,
                architecture="qwen3",
                overrides=TINY,
                tokenizer=tmp_path / "tokenizer",
                dtype=dtype,
                seed=0,
            ),
            learner=PolicyLearnerConfig.model_validate(
                {"optimizer": {"learning_rate": 0.05}, "mini_batches": 2, **learner}
            ),
            algorithm=make_algorithm("grpo", kl=KlPenalty(placement="loss", estimator="k3", coef=0.1)),
            temperature=1.0,
            optimizer_steps=10,
            seed=0,
            threads=1,
        )

    return make


def step(worker: TrainerWorker) -> dict[str, float]:
    completions = [
        Completion(
            request_id=str(seed),
            prompt_ids=np.array([5, 7, 3], dtype=np.int32),
            token_ids=np.random.default_rng(seed).integers(3, 20, size=4).astype(np.int32),
            logprobs=np.full(4, -3.0, dtype=np.float32),
            versions=((0, 4),),
            finish_reason="stop",
            seed=seed,
        )
        for seed in range(4)
    ]
    return worker.policy_step(completions, [0.0, 1.0, 1.0, 0.0], [0, 0, 1, 1]).metrics


def bytes_of(worker: TrainerWorker) -> str:
    return worker.publish(1)[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stage_with_an_adapter_resumes_from_the_adapter_alone(
    make_spec: Any, tmp_path: Path, dtype: str
) -> None:
    spec = make_spec(dtype, lora=LORA)
    worker = TrainerWorker(spec)
    untouched = bytes_of(worker)
    step(worker)
    metrics = step(worker)
    assert metrics["actor/ref_kl"] > 0
    assert bytes_of(worker) != untouched
    saved = tmp_path / "saved"
    worker.save(saved, True)
    assert (saved / "adapter_model.safetensors").is_file()
    assert not (saved / "model.safetensors").exists()
    resumed = TrainerWorker(replace(spec, resume=saved))
    assert bytes_of(resumed) == bytes_of(worker)
    assert step(resumed) == step(worker)
    assert bytes_of(resumed) == bytes_of(worker)


def test_the_model_of_a_stage_with_an_adapter_is_whole_and_has_the_adapter_beside_it(
    make_spec: Any, tmp_path: Path
) -> None:
    spec = make_spec(lora=LORA)
    worker = TrainerWorker(spec)
    step(worker)
    worker.save(tmp_path / "model", False)
    assert (tmp_path / "model/adapter/adapter_config.json").is_file()
    merged = load_model(replace(spec.model, path=tmp_path / "model"))
    sample = Sample.from_completion(np.array([5, 7, 3], np.int32), np.array([4, 9, 6], np.int32))
    (expected,), (got,) = worker.learner.logprobs([sample]), LocalScorer(merged).logprobs([sample])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    # The next stage may begin with it, without an adapter.
    step(TrainerWorker(replace(make_spec(), model=replace(spec.model, path=tmp_path / "model"))))


def test_an_adapter_alone_finds_the_model_that_it_was_trained_beside(make_spec: Any, tmp_path: Path) -> None:
    TrainerWorker(make_spec()).save(tmp_path / "base", False)
    spec = make_spec(lora=LORA)
    worker = TrainerWorker(replace(spec, model=replace(spec.model, path=tmp_path / "base")))
    step(worker)
    worker.save(tmp_path / "checkpoint", True)
    worker.save(tmp_path / "whole", False)
    found = adapted_model(tmp_path / "checkpoint").state_dict()
    whole = load_model(replace(spec.model, path=tmp_path / "whole")).state_dict()
    assert found.keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.items())
    assert export(tmp_path / "checkpoint", tmp_path / "exported") == 0
    exported = load_model(replace(spec.model, path=tmp_path / "exported")).state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in exported.items())
    with pytest.raises(ModelError, match=r"cannot read .*adapter_config\.json"):
        adapted_model(tmp_path / "whole")
    TrainerWorker(spec).save(tmp_path / "new", True)
    with pytest.raises(ModelError, match="it has new weights beside it"):
        adapted_model(tmp_path / "new")


@pytest.mark.parametrize(
    "options", [{"packing": True}, {"gradient_checkpointing": True}, {"packing": True, "lora": LORA}]
)
def test_layout_and_memory_do_not_change_what_is_learned(make_spec: Any, options: dict[str, Any]) -> None:
    plain = {"lora": options["lora"]} if "lora" in options else {}
    expected, got = (step(TrainerWorker(make_spec(**each))) for each in (plain, options))
    for name in ("actor/grad_norm", "actor/pg_loss", "actor/entropy", "actor/ref_kl"):
        assert got[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


def test_half_precision_resumes_from_its_master_weights(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec("bfloat16")
    worker = TrainerWorker(spec)
    step(worker)
    worker.save(tmp_path / "saved", True)
    masters = torch.load(tmp_path / "saved/trainer.pt")["learner"]["masters"]
    assert {each.dtype for each in masters} == {torch.float32}
    resumed = TrainerWorker(replace(spec, resume=tmp_path / "saved"))
    assert step(resumed) == step(worker)
    assert bytes_of(resumed) == bytes_of(worker)


CONFIG = """
name: demo
stages:
  - name: rlvr
    pipeline: rlvr
    model: {source: pretrained, path: my-model}
    data: {source: jsonl, path: prompts.jsonl}
    algorithm: {preset: grpo}
    rollout: {group_size: 8, prompts_per_step: 16, max_prompt_tokens: 512, sampling: {max_tokens: 64}}
    rewards: {grader: {name: number}}
    learner: {optimizer: {learning_rate: 1.0e-6}, OPTIONS}
    steps: 100
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("offload: [optimizer]", "has no effect on device cpu"),
        ("packing: true, compile: true", "not with packing"),
        ("lora: {target_modules: [all-linear, q_proj]}", "names modules beside all-linear"),
        ("lora: {rnk: 4}", "rank"),
        ("lora: {rank: 0}", "rank"),
        ("offload: [optimiser]", "optimizer"),
    ],
)
def test_a_bad_option_is_named(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_text(CONFIG.replace("OPTIONS", options), RunConfig)


def test_offload_is_allowed_on_other_devices() -> None:
    text = CONFIG.replace("OPTIONS", "device: 'cuda:0', offload: [optimizer, parameters]")
    (stage,) = load_text(text, RunConfig).config.stages
    assert stage.learner.offload == ("optimizer", "parameters")
