"""Layouts are refused with their numbers before any process starts."""

import subprocess
import sys

import pytest
from roll_learners import LearnerError
from roll_learners.fsdp2 import Layout, Sharding, check_sizes

QWEN3 = {
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "layer_types": ["full_attention", "full_attention"],
}


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"ranks": 0}, "ranks is 0: at least 1"),
        (
            {"ranks": 6, "replicas": 2, "tensor": 2},
            "6 ranks are not a multiple of replicas 2 x context 1 x tensor 2",
        ),
        ({"ranks": 4, "expert": 2, "tensor": 2}, "expert 2 together with tensor 2: allowed is tensor 1"),
        ({"ranks": 4, "expert": 3}, "expert 3 does not divide the 4 ranks"),
    ],
)
def test_sizes_that_do_not_divide_the_ranks_are_refused(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(LearnerError, match=told):
        Layout(**sizes)


def test_ranks_are_divided_into_replicas_shards_and_shares() -> None:
    layout = Layout(ranks=16, replicas=2, context=2, tensor=2)
    assert (layout.shards, layout.data) == (4, 4)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (
            {"ranks": 4, "tensor": 4},
            "num_attention_heads 6 is not a multiple of tensor 4; num_key_value_heads 2",
        ),
        ({"ranks": 4, "context": 4}, "num_attention_heads 6 is not a multiple of context 4 x tensor 1"),
        ({"ranks": 2, "expert": 2}, "expert 2, but the model has no experts"),
    ],
)
def test_a_model_that_does_not_divide_is_refused_with_its_numbers(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(LearnerError, match=told):
        check_sizes(Layout(**sizes), QWEN3)


def test_sequences_are_not_divided_where_layers_look_back_through_a_window() -> None:
    windowed = QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]}
    with pytest.raises(LearnerError, match="full attention in every layer, but has sliding_attention"):
        check_sizes(Layout(ranks=2, context=2), windowed)
    check_sizes(Layout(ranks=2), windowed)


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LearnerError, match="num_experts 6 is not a multiple of expert 4"):
        check_sizes(Layout(ranks=4, expert=4), QWEN3 | {"num_experts": 6})
    check_sizes(Layout(ranks=4, expert=2), QWEN3 | {"num_experts": 6})


def test_packing_is_not_for_divided_sequences_and_a_precision_has_a_name() -> None:
    with pytest.raises(LearnerError, match="packing with context 2"):
        Sharding(layout=Layout(ranks=2, context=2), packing=True)
    with pytest.raises(LearnerError, match="precision is 'float16': allowed are float32, bfloat16"):
        Sharding(precision="float16")  # type: ignore[arg-type]


def test_a_layout_needs_no_torch() -> None:
    program = "import sys, roll_learners.fsdp2 as f; f.Layout(ranks=2); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
