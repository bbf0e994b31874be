"""Critics in processes of their own: the same numbers, the same checkpoints, and a death that is told."""

from pathlib import Path
from typing import Any

import pytest
from offline_runs import TINY, configured_rlvr, logged, numbers, run_stages, write_task
from roll_launch.failures import RoleDied
from roll_launch.interrupt import Interrupted
from roll_launch.local_runtime import LocalRuntime
from roll_launch.pipelines import specs
from roll_launch.plan import plan_stages
from roll_launch.run_directory import RunDirectory
from roll_launch.side_roles import CriticRole, CriticSpec

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def _config(task: Path, preset: str, placement: str, count: int):
    model = f"{{source: random, architecture: qwen3, config: {TINY}, tokenizer: {task}/tokenizer}}"
    return configured_rlvr(
        task,
        preset,
        f"critics={{count: {count}, model: {model}, optimizer: {{learning_rate: 1.0e-3}}, "
        f"placement: {placement}, warmup_steps: 1}}",
        "learner.mini_batches=2",
    )


@pytest.mark.parametrize(("preset", "count"), [("ppo", 1), ("appo", 2)])
async def test_placement_changes_no_number(task: Path, tmp_path: Path, preset: str, count: int) -> None:
    for placement in ("trainer", "own"):
        await run_stages(_config(task, preset, placement, count), tmp_path / placement)
    here, apart = (numbers(logged(tmp_path / each, "rlvr")) for each in ("trainer", "own"))
    differ = {name for key, name in here if here[key, name] != apart[key, name]}
    assert {name for name in differ if not name.startswith("rewards/seconds")} == set()
    assert here[4, "critic/vf_loss"] > 0 and ((4, "critic_1/vf_loss") in here) == (count == 2)


async def test_a_resume_may_place_critics_elsewhere(task: Path, tmp_path: Path) -> None:
    own = _config(task, "ppo", "own", 1)
    await run_stages(own, tmp_path / "whole")
    with pytest.raises(Interrupted):
        await run_stages(own, tmp_path / "stopped", stop_after=3)
    await run_stages(_config(task, "ppo", "trainer", 1), tmp_path / "stopped")
    whole, stopped = (numbers(logged(tmp_path / each, "rlvr")) for each in ("whole", "stopped"))
    for name in ("critic/vf_loss", "critic/explained_variance", "actor/pg_loss", "critic/score/mean"):
        assert whole[4, name] == stopped[4, name]


class _Dying:
    """A critic whose process dies at its third update."""

    def __init__(self, critic: Any) -> None:
        self._critic, self._updates = critic, 0

    def values(self, samples: Any) -> Any:
        return self._critic.values(samples)

    def update(self, *arguments: Any, **options: Any) -> Any:
        self._updates += 1
        if self._updates > 2:
            raise RoleDied("critic-0", "update", "the worker exited")
        return self._critic.update(*arguments, **options)

    def save(self, path: Path) -> None:
        self._critic.save(path)


class _DyingRuntime(LocalRuntime):
    async def start_critic(self, name: str, spec: CriticSpec) -> CriticRole:
        critic = await super().start_critic(name, spec)
        critic.handle = _Dying(critic.handle)  # type: ignore[misc]
        return critic


async def test_a_critic_that_dies_ends_the_run_with_its_name_and_a_resume_goes_on(
    task: Path, tmp_path: Path
) -> None:
    config = _config(task, "ppo", "own", 1)
    await run_stages(config, tmp_path / "whole")
    with pytest.raises(RoleDied, match="critic-0 died during update: the worker exited"):
        await run_stages(config, tmp_path / "dead", runtime=_DyingRuntime())
    await run_stages(config, tmp_path / "dead")
    whole, dead = (numbers(logged(tmp_path / each, "rlvr")) for each in ("whole", "dead"))
    assert whole[4, "critic/vf_loss"] == dead[4, "critic/vf_loss"]


def test_threads_are_shared_among_what_computes_at_a_time(task: Path, tmp_path: Path) -> None:
    config = _config(task, "appo", "own", 3)
    (plan,) = plan_stages(config, RunDirectory(root=tmp_path / "run"))
    trainer = specs.policy_trainer(plan, processors=8)
    critics = specs.placed_critics(plan, trainer, processors=8)
    assert [critic.threads for critic in critics] == [2, 2, 2]
    assert len({critic.model.seed for critic in critics}) == 3
