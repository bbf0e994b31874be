"""From an unknown key to the one that was probably meant."""

from typing import Annotated, Literal

import pytest
from pydantic import Field
from roll_launch.config import ConfigError, Section, load_text


class Fsdp2(Section):
    reshard: bool = True


class Megatron(Section):
    pipeline_parallel: int = 1


class Fsdp2Learner(Section):
    backend: Literal["fsdp2"] = "fsdp2"
    fsdp2: Fsdp2 = Fsdp2()
    clip: float = 1.0


class MegatronLearner(Section):
    backend: Literal["megatron"]
    megatron: Megatron = Megatron()
    overlap: bool = False


class Sampling(Section):
    max_tokens: int = 1
    top_p: float = 1.0


class Rollout(Section):
    group_size: int = Field(default=1, json_schema_extra={"also": ["num_generations", "n"]})
    sampling: Sampling = Sampling()


class Rlvr(Section):
    pipeline: Literal["rlvr"]
    name: str
    rollout: Rollout = Rollout()
    learner: Annotated[Fsdp2Learner | MegatronLearner, Field(discriminator="backend")] = Fsdp2Learner()


class Sft(Section):
    pipeline: Literal["sft"]
    name: str
    batch_size: int = 1


class Run(Section):
    seed: int = 0
    stages: tuple[Annotated[Rlvr | Sft, Field(discriminator="pipeline")], ...]


def hint(override: str) -> str:
    text = "stages:\n  - {name: sft, pipeline: sft}\n  - {name: rl, pipeline: rlvr}\n"
    with pytest.raises(ConfigError) as caught:
        load_text(text, Run, [override])
    (problem,) = caught.value.problems
    assert problem.message == "unknown key" and problem.allowed
    return problem.hint or ""


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sed=1", "did you mean seed?"),
        ("Seed=1", "did you mean seed?"),
        ("stages.rl.rollout.group-size=8", "did you mean group_size?"),
        ("stages.rl.rollout.gruop_size=8", "did you mean group_size?"),
        ("stages.rl.rollout.n=8", "did you mean group_size?"),
        ("stages.rl.num_generations=8", "did you mean rollout.group_size?"),
        ("stages.rl.group_size=8", "group_size belongs to rollout"),
        ("stages.rl.max_tokens=8", "max_tokens belongs to rollout.sampling"),
        ("stages.rl.max_tokns=8", "did you mean rollout.sampling.max_tokens?"),
        ("stages.rl.rollout.sampling.group_size=8", "group_size belongs to stages.*.rollout"),
        ("stages.rl.seed=8", "seed belongs to the top level"),
        ("group_size=8", "group_size belongs to stages.*.rollout"),
        (
            "stages.rl.learner.megatron.pipeline_parallel=2",
            "megatron belongs to backend megatron; chosen is fsdp2",
        ),
        ("stages.rl.learner.overlap=true", "overlap belongs to backend megatron; chosen is fsdp2"),
        (
            "stages.rl.learner={backend: megatron, clip: 1}",
            "clip belongs to backend fsdp2; chosen is megatron",
        ),
        ("stages.sft.rollout.group_size=2", "rollout belongs to pipeline rlvr; chosen is sft"),
        ("stages.sft.group_size=2", "group_size belongs to rollout of pipeline rlvr; chosen is sft"),
        ("stages.rl.batch_size=2", "batch_size belongs to pipeline sft; chosen is rlvr"),
        ("stages.rl.zzzzzz=2", ""),
    ],
)
def test_an_unknown_key_names_the_one_that_was_meant(override: str, expected: str) -> None:
    assert hint(override) == expected


def test_a_recursive_schema_ends() -> None:
    class Tree(Section):
        value: int = 0
        below: tuple["Tree", ...] = ()

    config = load_text("below: [{below: [{value: 3}]}]", Tree).config
    assert config.below[0].below[0].value == 3
    with pytest.raises(ConfigError, match=r"below.0.valeu: unknown key; did you mean value\?"):
        load_text("below: [{valeu: 1}]", Tree)
