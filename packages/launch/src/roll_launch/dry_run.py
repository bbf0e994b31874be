"""Every stage once, on fake engines and a fake trainer: real data, tokenizer, scheduler, graders and files;
no torch.

`roll-launch check` runs it to find in seconds what would otherwise stop a run half an hour in.
"""

import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rollout import (
    GenerateRequest,
    ScriptedEngine,
    WeightUpdate,
    pack_buckets,
    weights_checksum,
)

from roll_launch.agentic_plan import AgenticPlan
from roll_launch.config import FiltersConfig, RolloutConfig, RunConfig
from roll_launch.display import Display
from roll_launch.episode_roles import EnvironmentSpec, EnvironmentWorker
from roll_launch.errors import RollLaunchError
from roll_launch.failures import first_cause
from roll_launch.interrupt import Interrupt
from roll_launch.local_environment import LocalEnvironmentWorker
from roll_launch.local_runtime import LocalActor, LocalRewardWorker
from roll_launch.models import load_tokenizer
from roll_launch.offline_plan import OfflinePlan
from roll_launch.pipelines.choice import pipeline_of
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import RlvrPlan, SftPlan, StagePlan
from roll_launch.prompts import PromptSet
from roll_launch.roles import (
    Actor,
    ActorSpec,
    Handle,
    PublishedWeights,
    Pulse,
    RewardSpec,
    RewardWorker,
    ScoredRollout,
    Trainer,
    TrainerSpec,
)
from roll_launch.run_directory import RunDirectory
from roll_launch.side_roles import (
    CriticRole,
    CriticSpec,
    OfflineSpec,
    OfflineTrainer,
    RewardModelRole,
    RewardModelSpec,
    TeacherRole,
    TeacherSpec,
)
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits
from roll_launch.workers.reward import RewardJudge

Plan = TypeVar("Plan", RlvrPlan, AgenticPlan)

DRY_STEPS = 1
DRY_HELDOUT = 8
DRY_METRICS = {"actor/grad_norm": 1.0, "actor/lr": 1.0}


class DryRunError(RollLaunchError):
    """A stage cannot run, as its dry run found."""


class DryTrainer:
    """`Trainer` that trains nothing: each step changes the one number that it publishes."""

    def __init__(self) -> None:
        self._steps = 0

    async def policy_step(
        self, samples: Sequence[ScoredRollout], teachers: Sequence[Handle] = ()
    ) -> StepResult:
        self._steps += 1
        return StepResult(metrics=dict(DRY_METRICS), updates=1)

    async def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        self._steps += 1
        return StepResult(metrics=dict(DRY_METRICS), updates=1)

    async def prepare(self, samples: Sequence[Sample], *, last: bool) -> None:
        """Nothing is computed."""

    async def step(self, samples: Sequence[Sample], signals: Sequence[Handle]) -> StepResult:
        self._steps += 1
        return StepResult(metrics=dict(DRY_METRICS), updates=1)

    async def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        return {}

    async def publish(self, version: int) -> PublishedWeights:
        number = np.array([self._steps], dtype=np.int64).view(np.uint8)
        buckets = tuple(pack_buckets([("steps", "int64", (1,), number)], max_bytes=64))
        update = WeightUpdate(version=version, buckets=buckets)
        return PublishedWeights(version=version, checksum=weights_checksum(buckets), update=update)

    async def probe(self, completion: Handle) -> float:
        return 0.0

    async def save(self, directory: Path, *, state: bool) -> None:
        (directory / "dry").write_text(f"{self._steps}\n", encoding="utf-8")

    async def peak_rss_gb(self) -> float:
        return 0.0


class DrySideRole:
    """A teacher, critic or reward model that computes nothing."""

    @property
    def handle(self) -> Handle:
        return self

    async def top_logits(self, samples: Sequence[Sample]) -> Handle:
        return None

    async def logprobs(self, completions: Sequence[Handle]) -> Handle:
        return None

    async def score(self, conversation: Sequence[Mapping[str, str]]) -> float:
        return 0.0

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)


class DryRuntime:
    """`Runtime` with fake engines that answer with the prompt itself, and the run's own graders."""

    async def start_trainer(self, spec: TrainerSpec, critics: Sequence[CriticRole] = ()) -> Trainer:
        return DryTrainer()

    async def start_offline_trainer(self, spec: OfflineSpec) -> OfflineTrainer:
        return DryTrainer()

    async def start_teacher(self, name: str, spec: TeacherSpec) -> TeacherRole:
        return DrySideRole()

    async def start_critic(self, name: str, spec: CriticSpec) -> CriticRole:
        return DrySideRole()

    async def start_reward_model(self, name: str, spec: RewardModelSpec) -> RewardModelRole:
        return DrySideRole()

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        tokenizer = load_tokenizer(spec.model.tokenizer)

        def decode(ids: Sequence[int] | np.ndarray) -> str:
            return str(tokenizer.decode([int(token) for token in ids]))

        return LocalActor(ScriptedEngine(respond=_echo, decode=decode))

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        # Reward models that stages of this run train are not there yet: another answers for all of them.
        worker = LocalRewardWorker(RewardJudge(replace(spec, models={})))
        await worker.serve_models({name: [DrySideRole()] for name in spec.model_names})
        return worker

    async def start_environment_worker(self, name: str, spec: EnvironmentSpec) -> EnvironmentWorker:
        return await LocalEnvironmentWorker.of(spec)

    async def stop_roles(self) -> None:
        """Fake roles hold nothing."""

    async def close(self) -> None:
        """Fake roles hold nothing."""


async def dry_run(config: RunConfig, plans: Sequence[StagePlan]) -> dict[str, StageResult]:
    """Runs a step of every stage in a temporary directory.

    Returns:
        What each stage did, by name.
    """
    results: dict[str, StageResult] = {}
    with tempfile.TemporaryDirectory(prefix="roll-dry-") as scratch:
        directory = RunDirectory.claim(Path(scratch), now=datetime.now(), exact=Path(scratch))
        with MetricLog(directory.metrics, tensorboard=None) as log:
            context = RunContext(
                config=config,
                directory=directory,
                runtime=DryRuntime(),
                waits=Waits(),
                interrupt=Interrupt(),
                log=log,
                display=Display(Console(file=io.StringIO())),
                processors=1,
                run_seconds=lambda: 0.0,
                config_text="",
            )
            for plan in plans:
                short = _shortened(plan)
                pipeline = pipeline_of(short, context, None)
                try:
                    await pipeline.run()
                # The boundary of a dry run: whatever a stage raises is what the user asked to be told.
                except Exception as error:
                    cause = first_cause(error)
                    raise DryRunError(
                        f"dry run of {plan.stage.name}: {type(cause).__name__}: {cause}"
                    ) from error
                results[plan.stage.name] = pipeline.result
    return results


def _echo(request: GenerateRequest) -> list[int]:
    """The prompt's own ids and an end token, within the limit."""
    ids: list[int] = request.prompt_ids[: request.sampling.max_tokens - 1].tolist()
    return [*ids, *request.sampling.stop_token_ids[:1]]


def _shortened(plan: StagePlan) -> StagePlan:
    """The plan for a single step; its group filters and alarms off, since echoes all score alike."""
    if isinstance(plan, SftPlan):
        return replace(plan, stage=plan.stage.model_copy(update={"steps": DRY_STEPS, "alarms": None}))
    if isinstance(plan, OfflinePlan):
        generation = None if plan.generation is None else _few_heldout(plan.generation)
        shortened = plan.stage.model_copy(update={"steps": DRY_STEPS, "alarms": None})
        return replace(plan, stage=shortened, generation=generation)
    if isinstance(plan, AgenticPlan):
        played = plan.stage.model_copy(update=_shortening(plan.stage.rollout))
        return _few_heldout(replace(plan, stage=played))
    stage = plan.stage.model_copy(update=_shortening(plan.stage.rollout))
    return _few_heldout(replace(plan, stage=stage))


def _shortening(rollout: RolloutConfig) -> dict[str, object]:
    return {
        "steps": DRY_STEPS,
        "alarms": None,
        "rollout": rollout.model_copy(update={"filters": FiltersConfig()}),
    }


def _few_heldout(plan: Plan) -> Plan:
    if plan.heldout is None:
        return plan
    heldout = PromptSet(prompts=plan.heldout.prompts[:DRY_HELDOUT], dropped=plan.heldout.dropped)
    return replace(plan, heldout=heldout)
