"""Precision, checkpointing, compilation and offload change memory and speed, not what is learned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    ComputeSettings,
    LearnerError,
    LocalCritic,
    LocalLearner,
    OptimizerSettings,
    SupervisedObjective,
)
from roll_learners.offload import move_optimizer, move_parameters
from transformers import GPT2Config, GPT2LMHeadModel

Make = Callable[..., Any]


def learner(model: Any, rate: float = 1e-2, **settings: Any) -> LocalLearner:
    return LocalLearner(
        model,
        optimizer=OptimizerSettings(learning_rate=rate, eps=1e-3),
        micro_batch_tokens=32,
        compute=ComputeSettings(**settings),
    )


def test_master_weights_keep_updates_that_half_precision_would_lose(
    make_model: Make, make_samples: Make
) -> None:
    samples, moved = make_samples(), {}
    for masters in (True, False):
        model = make_model(dtype=torch.bfloat16)
        weight = model.model.layers[0].mlp.down_proj.weight
        before = weight.detach().clone()
        trained = learner(model, rate=2e-5, master_weights=masters)
        for _ in range(60):
            trained.update(samples, SupervisedObjective())
        moved[masters] = int((weight != before).sum())
    assert moved[True] > 3 * max(1, moved[False])


def test_master_weights_follow_the_float32_run(make_model: Make, make_samples: Make) -> None:
    """Gradients of micro-batches are summed in float32, so that the copies stay near the exact weights."""
    samples = make_samples()
    start = make_model(dtype=torch.bfloat16)
    exact = make_model(dtype=torch.float32)
    exact.load_state_dict(start.state_dict())
    half, full = learner(start), learner(exact)
    for _ in range(5):
        half.update(samples, SupervisedObjective())
        full.update(samples, SupervisedObjective())
    masters = torch.cat([value.flatten() for value in half.state_dict()["masters"]])
    weights = torch.cat([p.detach().flatten() for p in exact.parameters()])
    assert float((masters - weights).norm() / weights.norm()) < 0.02
    assert all(p.grad is None for p in start.parameters())
    rounded = torch.cat([p.detach().flatten() for p in start.parameters()])
    assert torch.equal(masters.bfloat16(), rounded)


def test_a_resume_of_a_half_precision_run_is_exact(make_model: Make, make_samples: Make) -> None:
    samples = make_samples()
    whole = learner(make_model(dtype=torch.bfloat16), rate=1e-4)
    first = learner(make_model(dtype=torch.bfloat16), rate=1e-4)
    for _ in range(4):
        whole.update(samples, SupervisedObjective())
    for _ in range(2):
        first.update(samples, SupervisedObjective())
    second = learner(make_model(dtype=torch.bfloat16, seed=3), rate=1e-4)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.update(samples, SupervisedObjective())
    for a, b in zip(whole.state_dict()["masters"], second.state_dict()["masters"], strict=True):
        assert torch.equal(a, b)
    state = first.state_dict()
    with pytest.raises(LearnerError, match="0 master weights, the model has"):
        second.load_state_dict({key: state[key] for key in ("optimizer", "updates")})


def test_a_skipped_update_leaves_masters_and_weights(make_model: Make, make_samples: Make) -> None:
    trained = learner(make_model(dtype=torch.bfloat16))
    before = [value.clone() for value in trained.state_dict()["masters"]]
    with torch.no_grad():
        trained.model.model.norm.weight[0] = torch.nan
    assert trained.update(make_samples(), SupervisedObjective()).skipped is not None
    assert all(torch.equal(a, b) for a, b in zip(before, trained.state_dict()["masters"], strict=True))


def test_autocast_is_near_float32_and_keeps_weights_in_it(make_model: Make, make_samples: Make) -> None:
    samples = make_samples()
    full, cast = (learner(make_model(dtype=torch.float32), autocast=cast) for cast in (False, True))
    a, b = (each.logprobs(samples) for each in (full, cast))
    difference = max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))
    assert 1e-6 < difference < 0.2
    norms = [each.update(samples, SupervisedObjective()).metrics["grad_norm"] for each in (full, cast)]
    assert norms[0] == pytest.approx(norms[1], rel=0.05)
    assert {p.dtype for p in cast.model.parameters()} == {torch.float32}
    with pytest.raises(LearnerError, match="autocast: the model is bfloat16; allowed is float32"):
        learner(make_model(dtype=torch.bfloat16), autocast=True)


def test_checkpointed_layers_are_computed_again_and_give_the_same_gradient(
    make_model: Make, make_samples: Make
) -> None:
    samples, norms, passes = make_samples(), {}, {}
    for checkpointing in (False, True):
        model = make_model()
        calls: list[int] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        trained = learner(model, gradient_checkpointing=checkpointing)
        calls.clear()
        norms[checkpointing] = trained.update(samples, SupervisedObjective()).metrics["grad_norm"]
        passes[checkpointing] = len(calls)
    assert norms[True] == pytest.approx(norms[False], rel=1e-12)
    assert passes[True] == 2 * passes[False]


def test_a_model_that_cannot_be_checkpointed_exactly_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=25, n_embd=16, n_layer=1, n_head=2))
    plain = learner(model, gradient_checkpointing=True)
    assert not any(each.training for each in plain.model.modules() if isinstance(each, torch.nn.Dropout))
    model.supports_gradient_checkpointing = False
    with pytest.raises(LearnerError, match="GPT2LMHeadModel has no layers that support it"):
        learner(model, gradient_checkpointing=True)


def test_a_critic_takes_the_same_settings(make_critic: Make, make_samples: Make) -> None:
    critic = make_critic(dtype=torch.float32)
    other = LocalCritic(
        critic.model,
        optimizer=OptimizerSettings(learning_rate=1e-2),
        compute=ComputeSettings(gradient_checkpointing=True, autocast=True),
    )
    samples = make_samples()
    plain, cast = critic.values(samples), other.values(samples)
    assert max(float(np.abs(a - b).max()) for a, b in zip(plain, cast, strict=True)) < 0.2


def test_on_the_cpu_nothing_is_offloaded(make_model: Make, make_samples: Make) -> None:
    trained = learner(make_model())
    trained.update(make_samples(), SupervisedObjective())
    assert trained.offload(optimizer=True, parameters=True) == 0
    assert trained.reload() == 0


def test_all_of_the_optimizers_state_is_offloaded(make_model: Make, make_samples: Make) -> None:
    """Onto a device without memory, since the values of this one are not looked at any more."""
    trained = learner(make_model(dtype=torch.float32))
    trained.update(make_samples(), SupervisedObjective())
    parameters = list(trained.model.parameters())
    size = sum(p.nbytes for p in parameters)
    assert move_parameters(parameters, "cpu") == 0
    # Two moments a parameter, and a step count.
    assert move_optimizer(trained._adamw, "meta") == 2 * size + 4 * len(parameters)
    states = trained._adamw.state.values()
    assert {v.device.type for state in states for v in state.values()} == {"meta"}


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(LearnerError, match="packing and compile are both set"):
        ComputeSettings(packing=True, compile=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_compiled_decoder_has_the_same_gradient(make_model: Make, make_samples: Make) -> None:
    samples = make_samples()
    norms = [
        learner(make_model(dtype=torch.float32), compile=compiled)
        .update(samples, SupervisedObjective())
        .metrics["grad_norm"]
        for compiled in (False, True)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
