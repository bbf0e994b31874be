"""A stage planned from files in a temporary directory, without torch."""

from collections.abc import Callable
from pathlib import Path

import pytest
from roll_launch.config import RlvrStage, RunConfig, load_text
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.run_directory import RunDirectory
from roll_launch.tasks.sort_letters import write_files

CONFIG = """
name: test
stages:
  - name: rlvr
    pipeline: rlvr
    model: {{source: random, architecture: qwen3, tokenizer: {task}/tokenizer}}
    data: {{source: jsonl, path: {task}/train.jsonl}}
    evaluation: {{data: {{source: jsonl, path: {task}/heldout.jsonl}}, prompts: 8, every: 1}}
    algorithm: {{preset: grpo}}
    rollout:
      group_size: 4
      prompts_per_step: 2
      max_prompt_tokens: 32
      sampling: {{max_tokens: 40}}
    rewards: {{grader: {{name: exact, options: {{after: ";"}}}}}}
    learner: {{optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 2
"""


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the letter-sorting task, few of them."""
    directory = tmp_path_factory.mktemp("sort_letters")
    write_files(directory, seed=0, demonstrations=8, train=64, heldout=16)
    return directory


@pytest.fixture
def planned(task: Path, tmp_path: Path) -> Callable[..., tuple[RunConfig, list[StagePlan]]]:
    """Plans the configuration above with overrides."""

    def plan(*overrides: str) -> tuple[RunConfig, list[StagePlan]]:
        config = load_text(CONFIG.format(task=task), RunConfig, overrides).config
        return config, plan_stages(config, RunDirectory(root=tmp_path / "run"))

    return plan


@pytest.fixture
def stage(planned: Callable[..., tuple[RunConfig, list[StagePlan]]]) -> Callable[..., RlvrStage]:
    """The stage of the configuration above with overrides."""

    def made(*overrides: str) -> RlvrStage:
        config, _ = planned(*overrides)
        (only,) = config.stages
        assert isinstance(only, RlvrStage)
        return only

    return made
