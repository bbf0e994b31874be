"""Megatron-Core for real, over gloo: groups of two and four processes do what one process does."""

from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs the extra megatron"),
]

PARITY_OF_TWO = (
    "tensor",
    "tensor-sequence",
    "tensor-bias",
    "pipeline",
    "pipeline-untied",
    "virtual",
    "data",
    "data-whole-optimizer",
    "expert",
    "expert-tensor",
    "context",
    "recompute-layers",
    "recompute-attention",
    "packing",
    "packing-data",
)
PARITY_OF_FOUR = (
    "tensor-pipeline",
    "tensor-pipeline-sequence",
    "tensor-data",
    "expert-pipeline",
    "context-tensor",
)
TRIPS = ("trip-llama", "trip-qwen2", "trip-qwen3", "trip-qwen3_moe")
CONFORMS = ("conforms-tensor", "conforms-data", "conforms-pipeline")
CRITICS = ("critic-tensor", "critic-pipeline")


@pytest.fixture(scope="module")
def of_two(run_group: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    scenarios = (
        *PARITY_OF_TWO,
        *TRIPS,
        *CONFORMS,
        *CRITICS,
        "resumed",
        "resumed-experts",
        "refused",
        "half",
        "gated-delta",
    )
    results: dict[str, list[Any]] = run_group(tmp_path_factory.mktemp("two"), 2, *scenarios)
    return results


@pytest.fixture(scope="module")
def of_four(run_group: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = run_group(tmp_path_factory.mktemp("four"), 4, *PARITY_OF_FOUR)
    return results


def check_parity(ranks: list[dict[str, float]]) -> None:
    assert all(seen == ranks[0] for seen in ranks), "processes have different results"
    seen = ranks[0]
    assert seen["before"] < 1e-5
    assert seen["after"] < 5e-4
    assert seen["metrics"] < 5e-4
    assert seen["weights"] < 1e-4


@pytest.mark.parametrize("layout", PARITY_OF_TWO)
def test_two_processes_train_as_one_does(layout: str, of_two: dict[str, list[Any]]) -> None:
    check_parity(of_two[layout])


@pytest.mark.parametrize("layout", PARITY_OF_FOUR)
def test_four_processes_train_as_one_does(layout: str, of_four: dict[str, list[Any]]) -> None:
    check_parity(of_four[layout])


@pytest.mark.parametrize("trip", TRIPS)
def test_a_directory_comes_back_bit_by_bit(trip: str, of_two: dict[str, list[Any]]) -> None:
    seen = of_two[trip][0]
    assert seen["equal"]
    assert seen["logprobs"] < 1e-4


@pytest.mark.parametrize("layout", CONFORMS)
def test_a_learner_has_every_property_of_one(layout: str, of_two: dict[str, list[Any]]) -> None:
    assert of_two[layout][0] == []


@pytest.mark.parametrize("layout", CRITICS)
def test_a_critic_does_what_one_process_does(layout: str, of_two: dict[str, list[Any]]) -> None:
    assert max(of_two[layout][0].values()) < 1e-4


@pytest.mark.parametrize("run", ["resumed", "resumed-experts"])
def test_a_checkpoint_goes_on_in_every_layout(run: str, of_two: dict[str, list[Any]]) -> None:
    seen = of_two[run][0]
    assert seen["updates"] == 6
    assert seen["logprobs"] < 5e-4
    assert seen["norm"] < 5e-4
    assert seen["exported"] < 5e-4


def test_what_does_not_fit_is_refused_with_numbers(of_two: dict[str, list[Any]]) -> None:
    layout, dtype, checkpoint, column, sample, token, entry = of_two["refused"][0]
    assert "tensor=2" in layout and "pipeline=2" in layout and "share one layout" in layout
    assert "'float64'" in dtype and "bfloat16" in dtype
    assert "holds no sharded checkpoint" in checkpoint
    assert "1 entries for 8 samples" in column
    assert "59 tokens" in sample and "40" in sample
    assert "token ids from 0 to 25: allowed are 0 to 24" in token
    assert "'advantages' has [1] values for sample 0" in entry


def test_bfloat16_weights_are_trained_through_float32_copies(of_two: dict[str, list[Any]]) -> None:
    seen = of_two["half"][0]
    assert seen["norm"] < 0.1
    assert 0 < seen["logprobs"] < 0.5


def test_the_library_builds_no_layer_of_qwen3_5_without_flash_linear_attention(
    of_two: dict[str, list[Any]],
) -> None:
    assert "flash-linear-attention" in of_two["gated-delta"][0]["said"]
