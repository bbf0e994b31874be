"""docs/algorithms.md names what there is, and its example runs and stays short."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import roll_learners as rl
from roll_learners import algorithm as algorithm_module

TEXT = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


@pytest.fixture
def registries() -> Iterator[None]:
    saved = dict(rl.ADVANTAGES._parts)
    yield
    rl.ADVANTAGES._parts = saved
    algorithm_module._presets.pop("asymre", None)


@pytest.mark.usefixtures("registries")
def test_an_algorithm_is_added_in_under_30_lines_and_trains(make_learner: Any, make_samples: Any) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(example.splitlines()) < 30
    namespace: dict[str, Any] = {}
    exec(compile(example, "docs/algorithms.md", "exec"), namespace)
    learner, samples = make_learner(), make_samples((1, 0, 0, float("nan")))
    settings: dict[str, Any] = {"mini_batches": 1, "epochs": 1, "rng": np.random.default_rng(0)}
    metrics = rl.policy_step(learner, samples, namespace["algorithm"], **settings).metrics
    assert metrics["critic/advantages/max"] == pytest.approx(2 / 3 + 0.2)
    assert metrics["critic/advantages/min"] == pytest.approx(-1 / 3 + 0.2)
    assert metrics["actor/grad_norm"] > 0


def test_every_preset_preference_and_divergence_is_documented_and_no_other() -> None:
    table = TEXT[TEXT.index("## Presets") : TEXT.index("### What a preset needs")]
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(rl.PRESETS) - {"asymre"}
    preferences = TEXT[TEXT.index("## Preferences") : TEXT.index("## Distillation")]
    rows = re.findall(r"^\| (`.*?) \|", preferences, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*rl.PREFERENCES, "Kto"}
    assert all(f"`{name}`" in TEXT for name in rl.DIVERGENCES.names())


def test_what_presets_need_is_documented() -> None:
    needs = TEXT[TEXT.index("### What a preset needs") : TEXT.index("## Statistics")]
    for name, algorithm in rl.PRESETS.items():
        if algorithm.needs:
            assert f"`{name}`" in needs
