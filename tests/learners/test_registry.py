"""Registered parts: built-in facts are true, new parts need one decorator."""

import inspect

import pytest
import torch
from roll_learners import (
    ADVANTAGES,
    AGGREGATIONS,
    DIVERGENCES,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    PREFERENCE_LOSSES,
    LearnerError,
    Segments,
)
from roll_learners.registry import Registry

REGISTRIES = (
    ADVANTAGES,
    POLICY_LOSSES,
    AGGREGATIONS,
    KL_ESTIMATORS,
    DIVERGENCES,
    PREFERENCE_LOSSES,
)


@pytest.mark.parametrize(
    ("registry", "name"), [(registry, name) for registry in REGISTRIES for name in registry.names()]
)
def test_what_is_known_without_import_is_what_the_function_says(registry: Registry, name: str) -> None:
    bound = registry.bind(name, {})
    only = [p for p in inspect.signature(bound.function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert registry.part(name).parameters == {p.name: p.default is p.empty for p in only}
    assert set(bound.inputs) <= set(registry.inputs)
    needed = {name for name, needed in bound.inputs.items() if needed}
    for trait, value in (("uses_values", "values"), ("uses_states", "turn_states"), ("uses_turns", "turns")):
        if registry is ADVANTAGES and trait == "uses_turns":
            continue  # steps make the turns of advantages always
        assert (trait in registry.part(name).traits) is (value in needed)
    uses_behavior = "uses_behavior" in registry.part(name).traits
    assert uses_behavior is ("behavior_logprobs" in needed)
    assert ("uses_logits" in registry.part(name).traits) is (registry is KL_ESTIMATORS and "logits" in needed)
    assert ("uses_baselines" in registry.part(name).traits) is ("baselines" in needed)


def test_policy_losses_that_claim_to_vanish_at_zero_advantage_do() -> None:
    segments_inputs = {
        "old_logprobs": torch.tensor([-1.0, -0.2, -3.0], dtype=torch.float64),
        "advantages": torch.zeros(3, dtype=torch.float64),
    }
    segments = Segments.of_lengths(torch.tensor([2, 1]))
    parameters = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    for name in ("clipped_surrogate", "gspo", "cispo"):
        assert "vanishes_at_zero_advantage" in POLICY_LOSSES.part(name).traits
        logprobs = torch.tensor([-0.5, -2.0, -1.0], dtype=torch.float64, requires_grad=True)
        losses = POLICY_LOSSES.bind(name, parameters)(
            logprobs=logprobs, segments=segments, **segments_inputs
        ).losses
        losses.sum().backward()
        assert not losses.detach().any()
        assert logprobs.grad is not None
        assert not logprobs.grad.any()


def registry() -> Registry:
    return Registry("policy loss", ("logprobs", "advantages"), {})


def test_a_registered_function_is_called_with_the_inputs_it_names() -> None:
    losses = registry()

    @losses.register("plain")
    def plain(logprobs: float, *, scale: float, shift: float = 1.0) -> float:
        return logprobs * scale + shift

    assert losses.names() == ("plain",)
    assert losses.part("plain").parameters == {"scale": True, "shift": False}
    assert losses.bind("plain", {"scale": 2.0, "unused": 5})(logprobs=3.0, advantages=9.0) == 7.0


def test_an_absent_input_is_named() -> None:
    losses = registry()
    losses.register("plain")(lambda logprobs, advantages: logprobs)
    with pytest.raises(LearnerError, match="'plain' needs advantages"):
        losses.bind("plain", {})(logprobs=1.0, advantages=None)


def test_an_input_with_a_default_may_be_absent() -> None:
    losses = registry()
    losses.register("plain")(lambda logprobs, advantages=None: (logprobs, advantages))
    assert losses.bind("plain", {})(logprobs=1.0) == (1.0, None)
    assert losses.bind("plain", {})(logprobs=1.0, advantages=2.0) == (1.0, 2.0)


def test_an_input_that_does_not_exist_is_refused_at_registration() -> None:
    with pytest.raises(LearnerError, match="asks for values: inputs are logprobs, advantages"):
        registry().register("bad")(lambda logprobs, values: logprobs)


def test_a_name_is_registered_once() -> None:
    losses = registry()
    losses.register("plain")(lambda logprobs: logprobs)
    with pytest.raises(LearnerError, match="already registered"):
        losses.register("plain")(lambda logprobs: logprobs)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        LearnerError, match="unknown policy loss 'clipped_surogate': did you mean 'clipped_surr"
    ):
        POLICY_LOSSES.part("clipped_surogate")
