"""A trainer takes episodes: by trajectory, by turns, with each estimator that knows turns."""

from pathlib import Path

import numpy as np
import pytest
from roll_agentic import Episode, ScriptedPolicy, Segment, Turn, make, run_episode
from roll_agentic.samples import RowKind
from roll_launch.config import PolicyLearnerConfig
from roll_launch.roles import ModelSpec, TrainerSpec
from roll_launch.tasks.number_guessing import write_files
from roll_launch.workers.trainer import TrainerWorker
from roll_learners.algorithm import make_algorithm

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
}
SIGNS = {"?": 3, "<": 4, ">": 5, "!": 6}


class Recorded(ScriptedPolicy):
    """Guesses as it is told, each in two tokens, and records them as a model behind an engine would."""

    async def act(self, state):  # type: ignore[no-untyped-def]
        said = (await super().act(state)).response
        segments = (
            Segment(source="environment", token_ids=np.array([SIGNS[state.messages[-1].text]])),
            Segment(
                source="sampled",
                token_ids=np.array([7 + int(said), 1]),
                logprobs=np.array([-2.5, -0.5]),
                versions=((0, 2),),
                finish_reason="stop",
            ),
        )
        return Turn(response=said, segments=segments)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guesses")
    write_files(directory, seed=0, demonstrations=0)
    return directory / "tokenizer"


async def played() -> tuple[list[Episode], list[float], list[int]]:
    """Two groups of three games, with different ends."""
    episodes, groups = [], []
    for group, seed in enumerate((4, 5)):
        for guesses in (["8", "12", "10", "9", "1"], ["8", "4", "2", "1", "0"], list("02468")):
            episodes.append(
                await run_episode(make("number_guessing"), Recorded(guesses), seed=seed, max_turns=5)
            )
            groups.append(group)
    rewards = [episode.total_reward for episode in episodes]
    assert len(set(rewards[:3])) == 2 or len(set(rewards[3:])) == 2
    return episodes, rewards, groups


@pytest.mark.parametrize(
    ("preset", "samples"),
    [
        ("grpo", "trajectory"),
        ("grpo", "step"),
        ("gigpo", "trajectory"),
        ("gigpo", "step_concatenated"),
        ("ipa", "step_concatenated"),
        ("turn_reinforce", "step_concatenated"),
    ],
)
async def test_a_batch_of_episodes_is_trained_on(tokenizer: Path, preset: str, samples: RowKind) -> None:
    worker = TrainerWorker(
        TrainerSpec(
            model=ModelSpec(
                path=None, architecture="qwen3", overrides=TINY, tokenizer=tokenizer, dtype="float32", seed=0
            ),
            learner=PolicyLearnerConfig.model_validate({"optimizer": {"learning_rate": 0.01}}),
            algorithm=make_algorithm(preset),
            temperature=1.0,
            optimizer_steps=10,
            seed=0,
            threads=1,
            samples=samples,
        )
    )
    episodes, rewards, groups = await played()
    metrics = worker.policy_step(episodes, rewards, groups).metrics
    turns = sum(len(episode.turns) for episode in episodes)
    assert metrics["training/samples"] == (turns if samples == "step" else 6)
    assert metrics["actor/grad_norm"] > 0
    assert metrics["training/rollout_probs_missing"] == 0
