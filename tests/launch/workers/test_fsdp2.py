"""A trainer's rank, here the only one: it goes on from what it saves, to the last bit."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from roll_launch.config import OptimizerConfig, PolicyFsdp2Config
from roll_launch.export import export
from roll_launch.roles import ModelSpec, TrainerSpec
from roll_launch.tasks.sort_letters import write_files
from roll_launch.workers.fsdp2 import SHARDS, Fsdp2TrainerWorker
from roll_learners.algorithm import KlPenalty, make_algorithm
from roll_rollout import Completion
from transformers import AutoModelForCausalLM

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
}


@pytest.fixture
def spec(tmp_path: Path) -> TrainerSpec:
    write_files(tmp_path, seed=0, demonstrations=1, train=2, heldout=1)
    return TrainerSpec(
        model=ModelSpec(
            path=None,
            architecture="qwen3",
            overrides=TINY,
            tokenizer=tmp_path / "tokenizer",
            dtype="float32",
            seed=0,
        ),
        learner=PolicyFsdp2Config(
            backend="fsdp2", ranks=1, mini_batches=2, optimizer=OptimizerConfig(learning_rate=0.05)
        ),
        algorithm=make_algorithm("grpo", kl=KlPenalty(placement="loss", estimator="k3", coef=0.1)),
        temperature=1.0,
        optimizer_steps=20,
        seed=0,
        threads=1,
    )


@pytest.fixture(autouse=True)
def group_ends() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def worker(spec: TrainerSpec) -> Fsdp2TrainerWorker:
    if dist.is_initialized():
        dist.destroy_process_group()
    return Fsdp2TrainerWorker(spec, 0, dist.HashStore())


def completions(count: int, seed: int) -> list[Completion]:
    random = np.random.default_rng(seed)
    return [
        Completion(
            request_id=str(number),
            prompt_ids=np.array([5, 7, 3], dtype=np.int32),
            token_ids=random.integers(3, 20, size=4).astype(np.int32),
            logprobs=np.full(4, -3.0, dtype=np.float32),
            versions=((0, 4),),
            finish_reason="stop",
            seed=number,
        )
        for number in range(count)
    ]


def step(trainer: Fsdp2TrainerWorker, seed: int) -> dict[str, float]:
    done = trainer.policy_step(completions(6, seed), [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1])
    assert done.updates == 2
    return done.metrics


@pytest.mark.timeout(240)
def test_a_rank_goes_on_from_its_shards_to_the_last_bit(spec: TrainerSpec, tmp_path: Path) -> None:
    trainer = worker(spec)
    step(trainer, 1)
    (tmp_path / "step_1").mkdir()
    trainer.save(tmp_path / "step_1", state=True)
    assert (tmp_path / "step_1" / SHARDS).is_dir()
    expected, probe = step(trainer, 2), completions(1, 3)[0]
    distance = trainer.probe(probe)

    again = worker(dataclasses.replace(spec, resume=tmp_path / "step_1"))
    assert step(again, 2) == expected
    assert again.probe(probe) == distance
    again.save(tmp_path / "model", state=False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    exported = dict(again.learner.export_weights())
    assert all(
        torch.equal(exported[name], tensor) for name, tensor in model.state_dict().items() if name in exported
    )
    # The checkpoint is of the step before.
    export(tmp_path / "step_1", tmp_path / "exported")
    assert (tmp_path / "exported" / "tokenizer.json").is_file()
