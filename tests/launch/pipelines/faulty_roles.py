"""A dry runtime whose roles die at a chosen call, for tests of replacement and resume."""

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from roll_launch.config import RunConfig, dump_config
from roll_launch.display import Display
from roll_launch.dry_run import DryRuntime, DryTrainer
from roll_launch.failures import RoleDied
from roll_launch.history import read_history
from roll_launch.interrupt import Interrupt
from roll_launch.pipelines.choice import pipeline_of
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import StagePlan
from roll_launch.resume import clear_the_way
from roll_launch.roles import Actor, ActorSpec, RewardSpec, RewardWorker, Trainer, TrainerSpec
from roll_launch.run_directory import RunDirectory
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits

Fault = Callable[[str, str, int], None]
"""Called with role, method and how many calls of all roles came before; raises, or does nothing."""


class Calls:
    """All calls of a run, in order, and the fault that strikes them."""

    def __init__(self, fault: Fault) -> None:
        self.made: list[tuple[str, str]] = []
        self.starts: Counter[str] = Counter()
        self._fault = fault

    def strike(self, role: str, method: str) -> None:
        self.made.append((role, method))
        self._fault(role, method, len(self.made) - 1)


class Faulty:
    """A role whose calls may be struck. Once it has died, it stays dead."""

    def __init__(self, name: str, role: object, calls: Calls) -> None:
        self._name = name
        self._role = role
        self._calls = calls
        self._dead = False

    def __getattr__(self, method: str):
        async def call(*arguments, **options):
            try:
                if self._dead:
                    raise RoleDied(self._name, method, "dead already")
                self._calls.strike(self._name, method)
            except RoleDied:
                self._dead = True
                raise
            return await getattr(self._role, method)(*arguments, **options)

        return call


class FaultyRuntime(DryRuntime):
    """`Runtime` of fake roles."""

    def __init__(self, fault: Fault = lambda role, method, number: None) -> None:
        self.calls = Calls(fault)

    async def start_trainer(self, spec: TrainerSpec) -> Trainer:
        return self._made("trainer", _counting(spec.resume))

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        return self._made(name, await super().start_actor(name, spec))

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        return self._made(name, await super().start_reward_worker(name, spec))

    def _made(self, name: str, role: object):
        self.calls.starts[name] += 1
        self.calls.strike(name, "start")
        return Faulty(name, role, self.calls)


async def run_stage(
    config: RunConfig, plan: StagePlan, directory: RunDirectory, runtime: DryRuntime, *, resume: bool = False
) -> StageResult:
    """Runs one stage, or goes on with it from what is in the directory, as `roll-launch resume` does."""
    history = read_history(directory, dump_config(config), [plan]) if resume else {}
    if resume:
        clear_the_way(directory, [plan], history)
    with MetricLog(directory.metrics, tensorboard=None) as log:
        context = RunContext(
            config=config,
            directory=directory,
            runtime=runtime,
            waits=Waits(),
            interrupt=Interrupt(),
            log=log,
            display=Display(Console(file=io.StringIO())),
            processors=1,
            run_seconds=lambda: 0.0,
            config_text=dump_config(config),
        )
        pipeline = pipeline_of(plan, context, history.get(plan.stage.name))
        await pipeline.run()
    return pipeline.result


def ledger(directory: RunDirectory) -> list[tuple[object, ...]]:
    """Every recorded sample: step, group, member, seed, prompt and version."""
    lines = map(json.loads, directory.rollouts("rlvr").read_text().splitlines())
    names = ("step", "group", "member", "seed", "prompt")
    return [(*(line[name] for name in names), line["versions"][0][0]) for line in lines]


def _counting(resume: Path | None) -> DryTrainer:
    """A trainer whose whole state is a number of steps, kept in its checkpoints."""
    trainer = DryTrainer()
    if resume is not None:
        trainer._steps = int((resume / "dry").read_text())
    return trainer
