"""A learner on several ranks in a configuration: chosen by its back-end, refused with numbers."""

from pathlib import Path

import pytest
from roll_hw import MemoryEstimate
from roll_launch.config import ConfigError, PolicyFsdp2Config, RunConfig, load_config
from roll_launch.learner_layout import LayoutError, layout_text, per_rank, refuse_unfit_layouts
from roll_launch.roles import ModelSpec
from roll_launch.tasks.sort_letters import write_files
from roll_learners.fsdp2 import Layout

PATH = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def learner(more: str = "", stage: str = "rlvr") -> str:
    return f"stages.{stage}.learner={{backend: fsdp2, ranks: 4, optimizer: {{learning_rate: 1.0e-3}}{more}}}"


def loaded(*overrides: str) -> RunConfig:
    return load_config(PATH, overrides).config


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*overrides)
    return "\n".join(str(problem) for problem in caught.value.problems)


def test_the_back_end_chooses_the_options() -> None:
    chosen = loaded(learner(", tensor: 2, mini_batches: 2")).stages[1].learner
    assert isinstance(chosen, PolicyFsdp2Config)
    assert chosen.layout() == Layout(ranks=4, tensor=2)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([learner(", tensor: 3")], "4 ranks are not a multiple of replicas 1 x context 1 x tensor 3"),
        ([learner(), "runtime=local"], "runtime local keeps every role in this process"),
        ([learner(", offload: true")], "offload: has no effect on device cpu"),
        ([learner(", reduce_precision: bfloat16")], "reduce_precision: has no effect without precision"),
        ([learner(", context: 2, packing: true")], "packing: not with context 2"),
        ([learner(", lora: {rank: 8}")], "lora belongs to backend local; chosen is fsdp2"),
        (["stages.rlvr.learner.tensor=2"], "tensor belongs to backend fsdp2; chosen is local"),
        ([learner(), "stages.rlvr.algorithm.kl={placement: loss, estimator: full, coef: 0.1}"], "fsdp2"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], told: str) -> None:
    assert told in refused(*overrides)


def test_a_model_that_does_not_divide_is_refused_with_its_stage(tmp_path: Path) -> None:
    write_files(tmp_path, seed=0, demonstrations=1, train=2, heldout=1)
    config = loaded(learner(), learner(", tensor: 4", stage="sft"))
    model = ModelSpec(
        path=None,
        architecture="qwen3",
        overrides={"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384},
        tokenizer=tmp_path / "tokenizer",
        dtype="float32",
        seed=0,
    )
    told = "stage sft: .*qwen3: num_key_value_heads 2 is not a multiple of tensor 4"
    with pytest.raises(LayoutError, match=told):
        refuse_unfit_layouts([(stage, model) for stage in config.stages])


def test_a_rank_holds_its_share_of_weights_and_all_of_its_own_passes() -> None:
    layout = Layout(ranks=8, replicas=2, tensor=2)
    assert layout_text(layout) == "8 ranks: 2 replicas x 2 shards x tensor 2; 4 shares of a batch"
    whole = MemoryEstimate(parts={"weights": 8.0, "optimizer": 16.0, "activations": 3.0})
    assert per_rank(whole, layout).parts == {"weights": 2.0, "optimizer": 4.0, "activations": 3.0}
