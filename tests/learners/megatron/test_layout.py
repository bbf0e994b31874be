"""Which layouts a model allows, before any process group is made."""

from typing import Any

import pytest
from roll_learners import LearnerError
from roll_learners.megatron import MegatronLayout, check_layout, read_architecture

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 101,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
MIXTURE = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}


def test_what_is_left_of_all_processes_is_data_parallel() -> None:
    layout = MegatronLayout(tensor=2, pipeline=3)
    assert check_layout(layout, read_architecture(QWEN3), processes=12) == 2


def test_processes_that_do_not_divide_are_named_with_the_numbers() -> None:
    with pytest.raises(LearnerError, match=r"tensor 4 x pipeline 2 x context 1 = 8 .* there are 12"):
        check_layout(MegatronLayout(tensor=4, pipeline=2), read_architecture(QWEN3), processes=12)


def test_all_sizes_that_do_not_divide_are_named_at_once() -> None:
    with pytest.raises(LearnerError) as caught:
        check_layout(MegatronLayout(tensor=8, pipeline=4), read_architecture(QWEN3), processes=32)
    message = str(caught.value)
    assert "num_key_value_heads 4 is no multiple of tensor 8" in message
    assert "num_hidden_layers 6 is no multiple of pipeline 4 x virtual_pipeline 1 = 4" in message


@pytest.mark.parametrize(
    ("layout", "config", "processes", "message"),
    [
        ({"expert": 2}, QWEN3, 2, "the model has no experts"),
        ({"expert": 3}, MIXTURE, 3, "num_experts 8 is no multiple of expert 3"),
        ({"expert": 4}, MIXTURE, 2, "expert 4 does not divide the 2 processes"),
        ({"tensor": 2}, MIXTURE, 2, "need sequence_parallel, which is false"),
        ({"tensor": 2}, QWEN3 | {"vocab_size": 1}, 2, "vocab_size 1 leaves one of tensor 2"),
    ],
)
def test_a_layout_that_does_not_fit_the_model_is_refused(
    layout: dict[str, Any], config: dict[str, Any], processes: int, message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        check_layout(MegatronLayout(**layout), read_architecture(config), processes=processes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor": 0}, "layout.tensor is 0: at least 1"),
        ({"virtual_pipeline": 2}, "virtual_pipeline is 2 with pipeline 1"),
        ({"sequence_parallel": True}, "sequence_parallel is true with tensor 1"),
        ({"recompute": "layer"}, "did you mean 'layers'"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        MegatronLayout(**options)


def test_rows_are_as_long_as_their_shares_need() -> None:
    assert MegatronLayout(tensor=2).row_multiple == 1
    assert MegatronLayout(tensor=2, sequence_parallel=True).row_multiple == 2
    assert MegatronLayout(tensor=2, context=3, sequence_parallel=True).row_multiple == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "no converter for model_type 'gemma3': there are llama, qwen2"),
        ({"model_type": "qwen3_5"}, "gated-delta layers"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_type 'llama3'"),
    ],
)
def test_what_is_not_converted_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        read_architecture(QWEN3 | changes)


def test_the_scaling_of_llama_3_is_read() -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    read = read_architecture(QWEN3 | {"model_type": "llama", "rope_parameters": rope})
    assert (read.rope_theta, read.rope_factor) == (5e5, 8.0)
