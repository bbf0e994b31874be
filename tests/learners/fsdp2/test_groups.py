"""Groups of 2 and 4 processes train as one does in any layout, and go on from each other's checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import group_run
import numpy as np
import pytest
import torch
from roll_learners import LocalLearner, LocalScorer, SupervisedObjective
from transformers import AutoModelForCausalLM

RunGroup = Callable[..., dict[str, list[Any]]]

LIMIT_S = 500
OF_TWO = [
    "shards", "shards untied, recomputed", "shards double", "shards moe",
    "tensor", "tensor untied", "tensor moe", "tensor double",
    "expert", "expert double", "context", "context double",
]  # fmt: skip
OF_FOUR = [
    "shards", "replicas", "replicas moe", "replicas tensor", "shards tensor",
    "context tensor", "context 4", "expert", "expert 4",
]  # fmt: skip


def local(name: str) -> dict[str, Any]:
    """What one process comes to in the scenario."""
    kind = "moe" if "moe" in name or "expert" in name else "dense"
    dtype = torch.float64 if "double" in name else torch.float32
    model = group_run.make_model(kind, tied="untied" not in name, dtype=dtype)
    learner = LocalLearner(model, optimizer=group_run.optimizer(), micro_batch_tokens=64, temperature=0.9)
    return group_run.trained(learner)


def assert_equal(got: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Metrics of each update, the log-probs after the last, and every weight."""
    for ours, theirs in zip(got["metrics"], expected["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    for ours, theirs in zip(got["logprobs"], expected["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    assert got["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(got["weights"][name], weight, rtol=tolerance, atol=tolerance)


@pytest.mark.timeout(LIMIT_S)
def test_two_processes_update_as_one_does(run_group: RunGroup, tmp_path: Path) -> None:
    results = run_group(tmp_path, 2, "shards", "uneven")
    for got in results["shards"]:
        assert_equal(got, local("shards"), 1e-5)
    learner = LocalLearner(
        group_run.make_model(), optimizer=group_run.optimizer(), micro_batch_tokens=64, temperature=0.9
    )
    expected = learner.update(group_run.make_samples(1), SupervisedObjective()).metrics
    for got in results["uneven"]:
        assert got["one"] == pytest.approx(expected, rel=1e-5)
        assert got["nothing"]["grad_norm"] == got["nothing"]["tokens"] == 0
        assert not got["scored"][0].any()
        assert got["none"] == []


@pytest.fixture(scope="module")
def two(run_group: RunGroup, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_group(tmp_path_factory.mktemp("two"), 2, *OF_TWO, "conformance", "refusals", "mixed")


@pytest.fixture(scope="module")
def four(run_group: RunGroup, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_group(tmp_path_factory.mktemp("four"), 4, *OF_FOUR)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("name", OF_TWO)
def test_two_ranks_of_any_layout_come_to_what_one_process_comes_to(
    two: dict[str, list[Any]], name: str
) -> None:
    expected = local(name)
    for got in two[name]:
        assert_equal(got, expected, 1e-9 if "double" in name else 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks_of_any_layout_come_to_what_one_process_comes_to(
    four: dict[str, list[Any]], name: str
) -> None:
    expected = local(name)
    for got in four[name]:
        assert_equal(got, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_the_learner_conforms_on_every_rank(two: dict[str, list[Any]]) -> None:
    for results in two["conformance"]:
        assert len(results) == 6
        assert [name for name, passed, _ in results if not passed] == []


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_what_one_rank_refuses_all_refuse_and_go_on(two: dict[str, list[Any]]) -> None:
    first, second = two["refusals"]
    assert first == second
    long, shape, count, ranks, offload, state, skipped = first
    assert "feeds 34 tokens to the model, but micro_batch_tokens is 20" in long
    assert "column 'advantages' has [3] values" in shape
    assert "column 'advantages' has 11 entries for 1 samples" in count
    assert "of 3 ranks, but the process group has 2" in ranks
    assert "offload on device cpu" in offload
    assert "save_checkpoint" in state
    assert skipped == "0.0"


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_half_precision_is_near_and_packing_is_equal(two: dict[str, list[Any]]) -> None:
    expected = local("shards")
    for got in two["mixed"]:
        assert_equal(got["packed"], expected, 1e-5)
        ours, theirs = got["halves"]["metrics"][0], expected["metrics"][0]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.01)
        assert ours["loss"] != theirs["loss"]
        assert all(weight.dtype == torch.float32 for weight in got["halves"]["weights"].values())


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_a_checkpoint_goes_on_in_any_layout_and_its_export_is_the_model(
    run_group: RunGroup, tmp_path: Path
) -> None:
    scenarios = ("saved", "resumed", "resumed from the background", "wrong checkpoints")
    results = run_group(tmp_path, 2, *scenarios)
    saved = results["saved"][0]
    others = {name: results[name][1] for name in scenarios[1:3]}
    for ranks, name in (
        (1, "resumed"),
        (4, "resumed"),
        (4, "resumed on tensor ranks"),
        (4, "resumed on expert ranks"),
    ):
        others[f"{name}, {ranks}"] = run_group(tmp_path, ranks, name)[name][-1]
    for name, got in others.items():
        same = name in scenarios  # the layout that wrote it goes on to the last bit
        assert got["updates"] == 4
        for ours, theirs in zip(got["before"], saved["before"], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=0 if same else 1e-5, rtol=0)
        assert_equal(got["after"], saved["after"], 0 if same else 1e-5)
    other, nowhere = results["wrong checkpoints"][1]
    assert "is of another model: 12 tensors differ" in other
    assert "holds no sharded checkpoint" in nowhere
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    scored = LocalScorer(model, temperature=0.9).logprobs(group_run.make_samples(seed=99))
    for ours, theirs in zip(scored, saved["before"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
