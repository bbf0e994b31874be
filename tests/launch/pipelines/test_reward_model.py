"""Reward models as roles: trained, asked by graders, lost and replaced."""

import asyncio
from pathlib import Path

import pytest
from offline_runs import STAGE, TINY, configured_rlvr, logged, numbers, run_stages, write_task
from roll_launch.config import placed_options
from roll_launch.dry_run import dry_run
from roll_launch.failures import RoleDied
from roll_launch.plan import plan_stages
from roll_launch.run_directory import RunDirectory
from roll_launch.workers.placed_models import PlacedModels

pytestmark = pytest.mark.timeout(120)


class _Scorer:
    def __init__(self, value: float | None) -> None:
        self.value, self.asked = value, 0

    async def score(self, conversation: object) -> float:
        self.asked += 1
        if self.value is None:
            raise RoleDied("reward-model-rm-0", "score", "the worker exited")
        return self.value


async def test_scores_are_asked_in_turn() -> None:
    models, scorers = PlacedModels(), [_Scorer(1.0), _Scorer(2.0)]
    models.serve({"rm": scorers})
    found = [await models.scorer("rm").score([]) for _ in range(4)]
    assert sorted(found) == [1.0, 1.0, 2.0, 2.0]


async def test_a_lost_score_is_asked_for_again_elsewhere() -> None:
    models = PlacedModels()
    models.serve({"rm": [_Scorer(None), _Scorer(2.0)]})
    assert [await models.scorer("rm").score([]) for _ in range(3)] == [2.0, 2.0, 2.0]


async def test_a_score_waits_for_the_replacement() -> None:
    models, dead = PlacedModels(), _Scorer(None)
    models.serve({"rm": [dead]})
    waiting = asyncio.create_task(models.scorer("rm").score([]))
    await asyncio.sleep(0.01)
    assert not waiting.done() and dead.asked == 1
    models.serve({"rm": [_Scorer(3.0)]})
    assert await waiting == 3.0


async def test_what_kills_two_models_has_no_score() -> None:
    models = PlacedModels()
    models.serve({"rm": [_Scorer(None), _Scorer(None), _Scorer(1.0)]})
    with pytest.raises(RoleDied):
        await models.scorer("rm").score([])


def test_only_graders_that_name_the_role_get_its_scorer() -> None:
    grader = {
        "name": "weighted",
        "options": {
            "parts": {
                "a": {"name": "reward_model", "options": {"model": "rm", "scale": "sigmoid"}, "weight": 2},
                "b": {"name": "reward_model", "options": {"model": "models/other"}},
            }
        },
    }
    parts = placed_options(grader, {"rm": {"scorer": 5}})["options"]["parts"]
    assert parts["a"] == {
        "name": "reward_model",
        "options": {"model": "rm", "scale": "sigmoid", "scorer": 5},
        "weight": 2,
    }
    assert parts["b"] == grader["options"]["parts"]["b"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def _config(task: Path, placement: str):
    rm = STAGE.format(name="rm", pipeline="preference", tiny=TINY, task=task, rows="pairs")
    return configured_rlvr(
        task,
        "grpo",
        "rewards={grader: {name: reward_model, options: {model: judge}}, models: [{name: judge, "
        f"model: {{source: stage, stage: rm}}, placement: {placement}}}]}}",
        "steps=2",
        before=rm + "    objective: {preset: reward_model}\n",
    )


async def test_a_reward_model_is_trained_and_then_asked_wherever_it_is(task: Path, tmp_path: Path) -> None:
    found = []
    for placement in ("own", "worker"):
        root = tmp_path / placement
        await run_stages(_config(task, placement), root)
        found.append(numbers(logged(root, "rlvr")))
    scores = [[each[step, "critic/score/mean"] for step in (1, 2)] for each in found]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5) and scores[0][0] != 0
    saved = tmp_path / "own/stages/rm/model"
    assert '"architectures": [\n    "Qwen3ForSequenceClassification"' in (saved / "config.json").read_text()


async def test_text_is_scored_as_the_tokens_of_training_are(task: Path, tmp_path: Path) -> None:
    import torch
    from roll_launch.workers.reward_model import load_reward_model
    from roll_learners import LocalCritic, OptimizerSettings
    from roll_learners.sample import Sample
    from roll_rewards import make_grader

    config = _config(task, "worker")
    await run_stages(config.model_copy(update={"stages": config.stages[:1]}), tmp_path / "run")
    plan = plan_stages(config, RunDirectory(root=tmp_path / "run"))[0]
    path = tmp_path / "run/stages/rm/model"
    torch.set_num_threads(1)
    critic = LocalCritic(
        load_reward_model(path, dtype="float32"), optimizer=OptimizerSettings(learning_rate=0.0)
    )
    sample: Sample = plan.rows[0][0]
    vocabulary = {number: token for token, number in critic_vocabulary(path).items()}
    text = "".join(vocabulary[token] for token in sample.token_ids.tolist()).removesuffix("<eos>")
    prompt, response = text.split("=", 1)
    score = await make_grader("reward_model", model=str(path)).grade(response, None, prompt=f"{prompt}=")
    assert score.value == pytest.approx(float(critic.scores([sample])[0]), abs=1e-5)


def critic_vocabulary(path: Path) -> dict[str, int]:
    from roll_launch.models import load_tokenizer

    return load_tokenizer(path).get_vocab()


@pytest.mark.parametrize("placement", ["own", "worker"])
async def test_a_dry_run_needs_no_model_that_is_not_there_yet(
    task: Path, tmp_path: Path, placement: str
) -> None:
    config = _config(task, placement)
    plans = plan_stages(config, RunDirectory(root=tmp_path / "run"))
    assert (await dry_run(config, plans))["rlvr"].steps == 1
