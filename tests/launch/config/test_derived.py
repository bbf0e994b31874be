"""Numbers that follow from a configuration."""

from pathlib import Path

import numpy as np
import pytest
from roll_launch.config import (
    Derived,
    RlvrStage,
    RunConfig,
    derive,
    derived_rows,
    evaluation_steps,
    load_config,
)

PATH = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def stages(*overrides: str) -> dict[str, Derived]:
    config: RunConfig = load_config(PATH, overrides).config
    return {derived.stage: derived for derived in derive(config)}


def test_the_quickstart_comes_to_what_its_comments_say() -> None:
    rlvr = stages()["rlvr"]
    assert (rlvr.samples_per_step, rlvr.mini_batches, rlvr.optimizer_steps, rlvr.total_samples) == (
        128,
        (64, 64),
        160,
        10240,
    )
    assert rlvr.longest_sequence == 112
    assert rlvr.evaluations == (0, 20, 40, 60, 80)
    sft = stages()["sft"]
    assert (sft.samples_per_step, sft.optimizer_steps, sft.total_tokens) == (64, 300, 300 * 64 * 112)
    assert sft.evaluations == ()


def test_uneven_mini_batches_are_dealt_as_the_learner_deals_them() -> None:
    rlvr = stages("stages.rlvr.learner.mini_batches=3", "stages.rlvr.learner.epochs=2")["rlvr"]
    assert rlvr.mini_batches == tuple(len(part) for part in np.array_split(np.arange(128), 3))
    assert (rlvr.optimizer_steps_per_step, rlvr.optimizer_steps) == (6, 480)
    assert dict(derived_rows(rlvr))["mini-batches"] == "2 x 43 + 1 x 42 samples, 2 passes"


@pytest.mark.parametrize(("budget", "passes"), [(16384, 2), (111 * 32, 4), (111, 128)])
def test_micro_batches_follow_from_the_token_budget(budget: int, passes: int) -> None:
    assert stages(f"stages.rlvr.learner.micro_batch_tokens={budget}")["rlvr"].micro_batches_per_step == passes


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(80, 20, (0, 20, 40, 60, 80)), (50, 20, (0, 20, 40, 50)), (5, 20, (0, 5))],
)
def test_evaluations_are_before_while_and_after(steps: int, every: int, expected: tuple[int, ...]) -> None:
    config = load_config(PATH, [f"stages.rlvr.steps={steps}", f"stages.rlvr.evaluation.every={every}"]).config
    stage = config.stages[1]
    assert isinstance(stage, RlvrStage)
    assert evaluation_steps(stage) == expected


def test_rows_say_the_numbers_in_words() -> None:
    rows = dict(derived_rows(stages()["rlvr"]))
    assert rows["samples per step"] == "16 prompts x 8 responses = 128"
    assert rows["optimizer steps"] == "2 per step, 160 in all"
    assert rows["tokens"] == "at most 14,336 per step, 1,146,880 in all"
    assert rows["evaluations"] == "5 of 512 prompts, after steps 0, 20, 40, 60, 80"
    many = dict(derived_rows(stages("stages.rlvr.evaluation.every=1")["rlvr"]))
    assert many["evaluations"].endswith("5, 6, 7, ...")
