"""Whole stages in environments on fake engines: scheduler, environments and files are the real ones."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from faulty_roles import FaultyRuntime, run_stage
from roll_launch.agentic_plan import AgenticPlan, AgenticPlanError, EpisodeStart, start_seed
from roll_launch.config import ConfigError, RunConfig, load_text
from roll_launch.dry_run import DryRunError, dry_run
from roll_launch.episode_roles import EnvironmentSpec, EnvironmentWorker
from roll_launch.failures import RoleDied
from roll_launch.pipelines.episode_supply import EpisodeSupply
from roll_launch.plan import StagePlan, plan_stages
from roll_launch.roles import Trainer, TrainerSpec
from roll_launch.run_directory import RunDirectory
from roll_launch.side_roles import CriticRole
from roll_launch.tasks.number_guessing import write_files

CONFIG = """
name: test
tracking: {{tensorboard: false}}
stages:
  - name: rl
    pipeline: agentic
    model: {{source: random, architecture: qwen3, tokenizer: {task}/tokenizer}}
    environments:
      - {{name: number_guessing, isolation: none}}
    episodes: {{max_turns: 5, form: raw}}
    evaluation: {{episodes: 8, every: 1}}
    algorithm: {{preset: grpo}}
    rollout:
      group_size: 4
      prompts_per_step: 2
      max_prompt_tokens: 32
      sampling: {{max_tokens: 4}}
    learner: {{optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 3
    checkpoint: {{every: 1}}
    alarms: null
"""

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]


class Fragile:
    """Ends at once with reward 1, except from every third start, where it breaks."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, object]]:
        if seed % 3 == 0:
            raise RuntimeError("the lake has no ice")
        return "?", {}

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, object]]:
        return "!", 1.0, True, False, {}


class Broken:
    """Never starts."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, object]]:
        raise RuntimeError("the lake has no ice")

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, object]]:
        raise AssertionError


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("number_guessing")
    write_files(directory, seed=0, demonstrations=4)
    return directory


@pytest.fixture
def planned(task: Path, tmp_path: Path) -> Planned:
    def plan(*overrides: str) -> tuple[RunConfig, list[StagePlan]]:
        config = load_text(CONFIG.format(task=task), RunConfig, overrides).config
        return config, plan_stages(config, RunDirectory(root=tmp_path / "run"))

    return plan


class Runtime(FaultyRuntime):
    """Environment workers may be struck too."""

    async def start_trainer(self, spec: TrainerSpec, critics: Sequence[CriticRole] = ()) -> Trainer:
        return await super().start_trainer(spec)

    async def start_environment_worker(self, name: str, spec: EnvironmentSpec) -> EnvironmentWorker:
        return self._made(name, await super().start_environment_worker(name, spec))


def lines_of(directory: RunDirectory) -> list[dict[str, object]]:
    return [json.loads(line) for line in directory.rollouts("rl").read_text().splitlines()]


def ledger(directory: RunDirectory) -> list[tuple[object, ...]]:
    names = ("step", "group", "member", "seed", "environment", "start")
    return [tuple(line[name] for name in names) for line in lines_of(directory)]


async def run(
    planned: Planned, path: Path, *overrides: str, runtime: Runtime | None = None, resume: bool = False
):
    config, (plan,) = planned(*overrides)
    directory = RunDirectory(root=path)
    path.mkdir(exist_ok=True)
    directory.rollouts("rl").parent.mkdir(exist_ok=True, parents=True)
    return directory, await run_stage(config, plan, directory, runtime or Runtime(), resume=resume)


async def test_a_stage_runs_a_step_with_evaluations_before_and_after(planned: Planned) -> None:
    results = await dry_run(*planned())
    result = results["rl"]
    assert (result.steps, result.samples) == (1, 8)
    assert set(result.metrics) == {"eval/accuracy/before", "eval/accuracy/after"}


@pytest.mark.parametrize(
    "overrides",
    [
        ("stages.rl.algorithm={preset: gigpo}", "stages.rl.episodes.samples=step_concatenated"),
        ("stages.rl.algorithm={preset: ipa}",),
        ("stages.rl.episodes.samples=step",),
        ("stages.rl.algorithm={preset: gigpo}",),
        ("stages.rl.rollout.asynchrony={max_staleness: 1}",),
        ("stages.rl.rollout.asynchrony={max_staleness: 1, in_flight: abort}",),
        ("stages.rl.rollout.over_provision={prompts: 1, responses: 1}",),
        ("stages.rl.rollout.filters={most_uncertain: 0.5}",),
        ("stages.rl.environments.0.isolation=thread", "stages.rl.episodes.workers=2"),
        ("stages.rl.rollout.max_prompt_tokens=8", "stages.rl.episodes.overflow=truncate_oldest"),
        ("stages.rl.episodes={max_turns: 5, form: chat, system: '', history: render}",),
    ],
    ids=lambda overrides: " ".join(each.split(".", 2)[-1] for each in overrides),
)
async def test_it_runs_dry_in_every_mode(planned: Planned, overrides: tuple[str, ...]) -> None:
    assert (await dry_run(*planned(*overrides)))["rl"].steps == 1


async def test_several_environments_share_the_episodes_by_weight(planned: Planned) -> None:
    _, (plan,) = planned(
        "stages.rl.environments=[{name: number_guessing, weight: 3}, {name: frozen_lake, starts: 4}]"
    )
    assert isinstance(plan, AgenticPlan) and plan.heldout is not None
    assert Counter(prompt.row.domain for prompt in plan.heldout.prompts) == {
        "number_guessing": 6,
        "frozen_lake": 2,
    }
    supply = EpisodeSupply(plan)
    starts = [supply.start(number) for number in range(400)]
    shares = Counter(start.environment for start in starts)
    assert 295 <= shares["number_guessing"] <= 305
    lakes = [start.start for start in starts if start.environment == "frozen_lake"]
    assert len(set(lakes)) == 4
    guesses = [start.start for start in starts if start.environment == "number_guessing"]
    assert len(set(guesses)) == len(guesses)


async def test_starts_of_a_resumed_supply_are_those_of_one_that_never_stopped(planned: Planned) -> None:
    _, (plan,) = planned()
    assert isinstance(plan, AgenticPlan)
    whole = EpisodeSupply(plan)
    keys = [next(whole).key for _ in range(10)]
    rest = EpisodeSupply(plan, first=6)
    assert [next(rest).key for _ in range(4)] == keys[6:]


async def test_held_out_starts_are_never_trained_on(planned: Planned) -> None:
    _, (plan,) = planned("stages.rl.evaluation.episodes=200")
    assert isinstance(plan, AgenticPlan) and plan.heldout is not None
    held_out = {prompt.start for prompt in plan.heldout.prompts if isinstance(prompt, EpisodeStart)}
    supply = EpisodeSupply(plan)
    assert len(held_out) == 200
    assert not held_out & {supply.start(number).start for number in range(2000)}
    assert start_seed(plan.seed, "number_guessing", 0, heldout=True) in held_out


async def test_members_of_a_group_start_alike_and_are_sampled_apart(planned: Planned, tmp_path: Path) -> None:
    directory, _ = await run(planned, tmp_path / "a")
    by_group: dict[object, list[Mapping[str, object]]] = {}
    for line in lines_of(directory):
        by_group.setdefault(line["group"], []).append(line)
    assert sorted(map(len, by_group.values())) == [4] * 6
    assert all(len({line["start"] for line in lines}) == 1 for lines in by_group.values())
    assert len({lines[0]["start"] for lines in by_group.values()}) == 6
    assert len({line["seed"] for line in lines_of(directory)}) == 24


async def test_the_rollouts_file_holds_readable_transcripts(planned: Planned, tmp_path: Path) -> None:
    directory, _ = await run(planned, tmp_path / "a")
    line = lines_of(directory)[0]
    assert line["messages"][0] == {"role": "environment", "text": "?"}
    assert [message["role"] for message in line["messages"][:3]] == ["environment", "policy", "environment"]
    assert line["turns"] == len(line["rewards"]) and line["status"] == "done"
    metrics = [json.loads(each) for each in directory.metrics.read_text().splitlines()]
    trained = next(each for each in metrics if "env/turns/mean" in each)
    assert trained["env/status/done"] == 1.0 and trained["env/success_rate"] == trained["critic/score/mean"]
    evaluated = next(each for each in metrics if "eval/success_rate" in each)
    assert evaluated["eval/samples"] == 8


async def test_a_run_that_was_cut_goes_on_with_the_same_episodes(planned: Planned, tmp_path: Path) -> None:
    whole, _ = await run(planned, tmp_path / "whole")

    def cut(role: str, method: str, number: int) -> None:
        if (role, method) == ("trainer", "policy_step"):
            cut.steps += 1  # type: ignore[attr-defined]
            if cut.steps == 3:  # type: ignore[attr-defined]
                raise RuntimeError("out of power")

    cut.steps = 0  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="out of power"):
        await run(planned, tmp_path / "cut", runtime=Runtime(cut))
    assert len(ledger(RunDirectory(root=tmp_path / "cut"))) == 16
    resumed, result = await run(planned, tmp_path / "cut", resume=True)
    assert result.steps == 3
    assert ledger(resumed) == ledger(whole)
    assert [line["messages"] for line in lines_of(resumed)] == [line["messages"] for line in lines_of(whole)]


async def test_a_dead_environment_worker_is_replaced_and_its_episodes_are_played_again(
    planned: Planned, tmp_path: Path
) -> None:
    whole, _ = await run(planned, tmp_path / "whole")

    def die_once(role: str, method: str, number: int) -> None:
        if (role, method) == ("environment-0", "play") and not runtime.died:
            runtime.died = True
            raise RoleDied(role, method, "killed")

    runtime = Runtime(die_once)
    runtime.died = False
    struck, _ = await run(planned, tmp_path / "struck", runtime=runtime)
    assert runtime.calls.starts["environment-0"] == 2
    assert ledger(struck) == ledger(whole)


async def test_an_episode_whose_replica_died_is_played_on_another(planned: Planned, tmp_path: Path) -> None:
    whole, _ = await run(planned, tmp_path / "whole", "stages.rl.rollout.replicas=2")

    def die_once(role: str, method: str, number: int) -> None:
        if (role, method) == ("actor-1", "generate") and number > 60 and not runtime.died:
            runtime.died = True
            raise RoleDied(role, method, "killed")

    runtime = Runtime(die_once)
    runtime.died = False
    struck, _ = await run(planned, tmp_path / "struck", "stages.rl.rollout.replicas=2", runtime=runtime)
    assert runtime.died and runtime.calls.starts["actor-1"] == 2
    assert sorted(map(str, ledger(struck))) == sorted(map(str, ledger(whole)))


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> str:
    """Importable by path, as environments of users are."""
    import sys
    import types

    module = types.ModuleType("fragile_environments")
    module.Fragile, module.Broken = Fragile, Broken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fragile_environments", module)
    monkeypatch.setattr("roll_launch.config.existence._module", lambda *each: iter(()))
    return "fragile_environments"


async def test_an_environment_that_breaks_costs_its_episode_and_never_becomes_reward_0(
    planned: Planned, tmp_path: Path, fragile: str
) -> None:
    environments = f"stages.rl.environments=[{{name: '{fragile}:Fragile'}}]"
    directory, result = await run(planned, tmp_path / "a", environments, "stages.rl.evaluation=null")
    assert result.samples == 24
    assert {line["reward"] for line in lines_of(directory)} == {1.0}
    assert all(int(str(line["start"])) % 3 for line in lines_of(directory))
    metrics = [json.loads(each) for each in directory.metrics.read_text().splitlines()]
    assert sum(each.get("rollout/failed/environment_error", 0) for each in metrics) > 0


async def test_an_environment_that_never_starts_is_told_by_the_dry_run(
    planned: Planned, fragile: str
) -> None:
    with pytest.raises(DryRunError, match=r"TooManyFailures|EvaluationError.*the lake has no ice"):
        await dry_run(*planned(f"stages.rl.environments=[{{name: '{fragile}:Broken'}}]"))


async def test_a_context_that_no_turn_fits_into_is_told_by_the_dry_run(planned: Planned) -> None:
    with pytest.raises(DryRunError, match="max_prompt_tokens"):
        await dry_run(
            *planned("stages.rl.environments=[{name: frozen_lake}]", "stages.rl.rollout.max_prompt_tokens=2")
        )


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("stages.rl.environments.0.name=number_gessing", "did you mean 'number_guessing'"),
        ("stages.rl.environments.0.options={turn: 3}", "did you mean 'turns'"),
        ("stages.rl.environments=[]", "has no environment"),
        (
            "stages.rl.environments=[{name: frozen_lake}, {name: frozen_lake}]",
            "two environments have one label",
        ),
        ("stages.rl.rollout.asynchrony={carry: true}", "an environment does not stand still"),
        ("stages.rl.rollout.asynchrony={in_flight: stop}", "an environment does not stand still"),
        ("stages.rl.rollout.overlong_prompts=drop", "see episodes.overflow"),
        ("stages.rl.episodes.history=render", "never change"),
        ("stages.rl.episodes.template_options={a: 1}", "form raw has no template"),
        ("stages.rl.rollout.group_size=1", "compares episodes from one start"),
        ("stages.rl.algorithm={preset: ppo}", "ppo needs them"),
        ("stages.rl.algorithm={preset: on_policy_distillation}", "learns from a teacher"),
        ("stages.rl.environments.0.tools={offered: []}", "offers no tool"),
        ("stages.rl.environments.0.tools={offered: [{tool: mcp}]}", "either a url or a command"),
        ("stages.rl.environments.0.tools={offered: [{tool: python}], parser: hermess}", "unknown parser"),
        ("stages.rl.learner.mini_batches=9", "more than a step has episodes"),
        ("stages.rl.learner.micro_batch_tokens=8", "micro_batch_tokens"),
    ],
)
def test_a_wrong_value_is_named(planned: Planned, override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        planned(override)


def test_credit_by_turns_is_refused_where_turns_are_samples_of_their_own(planned: Planned) -> None:
    with pytest.raises(ConfigError, match="step_concatenated"):
        planned("stages.rl.algorithm={preset: gigpo}", "stages.rl.episodes.samples=step")


def test_an_option_of_an_environment_by_path_is_looked_up_while_planning(planned: Planned) -> None:
    path = "roll_agentic.environments.number_guessing:NumberGuessing"
    with pytest.raises(AgenticPlanError, match="has no option 'turn'"):
        planned(f"stages.rl.environments=[{{name: '{path}', options: {{turn: 3}}}}]")
