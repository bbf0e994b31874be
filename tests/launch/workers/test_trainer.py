"""The trainer's state beside model and optimizer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from roll_launch.config import OptimizerConfig, PolicyLearnerConfig
from roll_launch.roles import CriticsSpec, ModelSpec, TrainerSpec
from roll_launch.tasks.sort_letters import write_files
from roll_launch.workers.trainer import TrainerWorker
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


@pytest.fixture
def spec(tmp_path: Path) -> TrainerSpec:
    write_files(tmp_path, seed=0, demonstrations=1, train=2, heldout=1)
    kl = KlPenalty(placement="reward", estimator="k1", coef=0.1, target=0.01, horizon=100)
    return TrainerSpec(
        model=ModelSpec(
            path=None,
            architecture="qwen3",
            overrides=TINY,
            tokenizer=tmp_path / "tokenizer",
            dtype="float32",
            seed=0,
        ),
        learner=PolicyLearnerConfig.model_validate({"optimizer": {"learning_rate": 0.05}}),
        algorithm=make_algorithm("grpo", kl=kl),
        temperature=1.0,
        optimizer_steps=10,
        seed=0,
        threads=1,
    )


def _completion(seed: int) -> Completion:
    random = np.random.default_rng(seed)
    return Completion(
        request_id=str(seed),
        prompt_ids=np.array([5, 7, 3], dtype=np.int32),
        token_ids=random.integers(3, 20, size=4).astype(np.int32),
        logprobs=np.full(4, -3.0, dtype=np.float32),
        versions=((0, 4),),
        finish_reason="stop",
        seed=seed,
    )


def test_a_kl_weight_that_is_held_near_a_target_goes_on_where_it_was_saved(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    worker = TrainerWorker(spec)
    samples, rewards, groups = [_completion(seed) for seed in range(4)], [0.0, 1.0, 1.0, 0.0], [0, 0, 1, 1]
    for _ in range(3):
        worker.policy_step(samples, rewards, groups)
    moved = worker._kl.coef
    assert moved != 0.1
    worker.save(tmp_path / "saved", True)
    resumed = TrainerWorker(replace(spec, resume=tmp_path / "saved"))
    assert resumed._kl.coef == moved
    first, second = (each.policy_step(samples, rewards, groups).metrics for each in (worker, resumed))
    assert first["actor/pg_loss"] == second["actor/pg_loss"]
    assert resumed._kl.coef == worker._kl.coef != moved


def test_critics_warm_up_alone_and_go_on_where_they_were_saved(spec: TrainerSpec, tmp_path: Path) -> None:
    critics = CriticsSpec(
        model=replace(spec.model, seed=7),
        count=2,
        optimizer=OptimizerConfig(learning_rate=0.01),
        warmup_steps=1,
    )
    spec = replace(spec, algorithm=make_algorithm("appo"), critics=critics)
    worker = TrainerWorker(spec)
    first, second = (critic.model.score.weight for critic in worker._critics)
    assert not first.equal(second)
    samples, rewards, groups = [_completion(seed) for seed in range(8)], [0.0, 1.0] * 4, [0] * 4 + [1] * 4
    before = worker.publish(0)[1]
    warming = worker.policy_step(samples, rewards, groups).metrics
    assert worker.publish(1)[1] == before
    assert "actor/grad_norm" not in warming and warming["critic_0/vf_loss"] > 0
    assert "actor/grad_norm" in worker.policy_step(samples, rewards, groups).metrics
    worker.save(tmp_path / "saved", True)
    resumed = TrainerWorker(replace(spec, resume=tmp_path / "saved"))
    kept, again = (each.policy_step(samples, rewards, groups).metrics for each in (worker, resumed))
    assert kept == again
