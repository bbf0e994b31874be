"""The loop of a stage of reinforcement learning, whatever its rollouts are.

A step: prompts -> scheduler -> rollouts -> scores -> scheduler -> trainer -> weight sync -> engines.
`rlvr.py` fills in completions and graders, `agentic.py` episodes.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roll_learners.update import StepResult
from roll_rewards import Score
from roll_scheduler import RolloutScheduler

from roll_launch.alarms import StageAlarms
from roll_launch.history import StageHistory
from roll_launch.pipelines.checkpoints import CheckpointSchedule
from roll_launch.pipelines.collection import ReplicaWork, RolloutBatch, members_of
from roll_launch.pipelines.evaluation import Evaluation
from roll_launch.pipelines.policy_roles import PolicyRoles
from roll_launch.pipelines.prompt_supply import Supply
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.pipelines.rollout_metrics import domain_metrics, rollout_metrics
from roll_launch.pipelines.sample_names import rollout_names
from roll_launch.pipelines.scheduling import training_policy
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import PolicyPlan
from roll_launch.progress import StageProgress
from roll_launch.prompts import Prompt
from roll_launch.roles import Handle, ScoredRollout
from roll_launch.run_directory import rollouts_file
from roll_launch.weight_sync import WeightSync, tolerance_of


class PolicyPipeline(ABC):
    """Runs one stage of reinforcement learning; subclasses say what its rollouts are."""

    def __init__(self, plan: PolicyPlan, context: RunContext, history: StageHistory | None) -> None:
        self._plan = plan
        self._context = context
        self._history = history
        self._path = context.directory.rollouts(plan.stage.name)
        self._file = rollouts_file(plan.stage.name)
        self._digest = plan.digest()
        self._version, self._written = 0, 0
        self.result = StageResult()
        self._alarms = StageAlarms(
            plan.stage.alarms, stage=plan.stage.name, screen=context.display, records=self.result.alarms
        )
        if history is not None:
            self._alarms.restore(history.progress.alarms)
            self.result.restore(history.progress)
            self._version = history.progress.version
            self._written = history.progress.files.get(self._file, 0)

    async def run(self) -> None:
        """Trains for the planned number of steps, with evaluations before, during and after."""
        checkpoint = self._history.checkpoint if self._history else None
        roles = await self._start_roles(checkpoint)
        self._connect(roles)
        async with roles.serving():
            await self._train()
        deadline_s = self._plan.stage.deadlines.sync_s
        async with self._context.waits.wait("peak memory of the trainer", deadline_s=deadline_s):
            self.result.peak_rss_gb = max(self.result.peak_rss_gb, await roles.trainer.peak_rss_gb())
        await self._checkpoints.final()

    async def _train(self) -> None:
        stage, context = self._plan.stage, self._context
        context.display.begin(stage.name, stage.steps, done=self.result.steps)
        await self._sync.publish(self._version)
        context.log.begin(stage.name, self.result.steps)
        if self._history is None:
            await self._evaluate(0, "before")
        self.result.times.end_step()
        self._scheduler = await self._make_scheduler()
        async with self._scheduler:
            with self._work.serving(self._scheduler):
                for step in range(self.result.steps + 1, stage.steps + 1):
                    context.interrupt.stop_at_boundary()
                    await self._step(step)
        await self._evaluate(stage.steps, "after")

    async def _step(self, step: int) -> None:
        """One step; when it returns, step, version and weights of all roles agree."""
        times, stage = self.result.times, self._plan.stage
        with times.phase("step"):
            with times.phase("gen"):
                batch = await self._generate(step)
            samples = self._score(batch)
            with times.phase("teacher"):
                taught = await self._taught(step, samples)
            with times.phase("update_actor"):
                async with self._context.waits.wait(
                    f"update of step {step}", deadline_s=stage.deadlines.step_s
                ):
                    trained = await self._trainer.policy_step(samples, taught)
            metrics = dict(trained.metrics)
            with times.phase("weight_sync"):
                metrics |= await self._publish(metrics)
            if stage.evaluation is not None and step % stage.evaluation.every == 0 and step < stage.steps:
                metrics |= await self._evaluate(step, "during")
            if self._context.config.tracking.rollouts:
                deadline_s = stage.deadlines.sync_s
                async with self._context.waits.wait(f"record of step {step}", deadline_s=deadline_s):
                    self._written = await self._record(step, batch, samples)
        self._finish(step, batch, samples, trained, metrics)
        # Last, so that what has been written of this step is before the point where a resume goes on.
        await self._checkpoints.after_step(step)

    async def _generate(self, step: int) -> RolloutBatch:
        """Waits for the step's groups; the scheduler runs their completions and grades each as it ends."""
        stage = self._plan.stage
        async with self._context.waits.wait(
            f"rollout of step {step}",
            deadline_s=stage.deadlines.rollout_s,
            pending=self._work.pending(self._scheduler),
        ):
            # Told only now, because the scheduler sends out the next tickets as soon as it may.
            self._scheduler.publish(self._version)
            self._clock.begin_step()
            batch = await self._scheduler.next_batch()
            self._clock.end_rollout()
            return batch

    async def _taught(self, step: int, samples: list[ScoredRollout]) -> list[Handle]:
        """Log-probs of the batch, of each teacher that is a role of its own."""
        completions = [sample.completion for sample in samples]
        deadline_s = self._plan.stage.deadlines.step_s
        async with self._context.waits.wait(f"teachers of step {step}", deadline_s=deadline_s):
            return await asyncio.gather(*(teacher.logprobs(completions) for teacher in self._teachers))

    async def _publish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The new weights get the next version number and go to every replica."""
        # A batch whose every sample is masked is not trained on, and has neither of the two.
        changed = metrics.get("actor/grad_norm", 0.0) > 0 and metrics.get("actor/lr", 0.0) > 0
        self._version += 1
        asynchrony = self._plan.stage.rollout.asynchrony
        if asynchrony is None:
            return await self._sync.publish(self._version, weights_changed=changed)
        await self._scheduler.pause(asynchrony.in_flight)
        synced = await self._sync.publish(self._version, weights_changed=changed)
        self._scheduler.publish(self._version)
        self._scheduler.resume()
        return synced

    async def _evaluate(self, step: int, when: str) -> dict[str, float]:
        """The held-out accuracy under the present weights; {} without held-out data."""
        if self._evaluation is None:
            return {}
        with self.result.times.phase("eval"):
            metrics = await self._evaluation.run(step)
        self._context.display.evaluation(step, metrics)
        if when != "during":
            self.result.metrics[f"eval/accuracy/{when}"] = metrics["eval/accuracy"]
            self._context.log.log(self._plan.stage.name, step, metrics)
        return metrics

    def _finish(
        self,
        step: int,
        batch: RolloutBatch,
        samples: list[ScoredRollout],
        trained: StepResult,
        metrics: dict[str, float],
    ) -> None:
        """Books the step."""
        tokens = self._tokens(batch)
        self.result.steps = step
        self.result.samples += len(members_of(batch))
        self.result.tokens += tokens
        timing = self.result.times.end_step()
        rewards = [sample.reward for sample in samples]
        metrics |= rollout_metrics(batch, rewards) | domain_metrics(batch) | self._batch_metrics(batch)
        metrics |= self._scheduler.metrics() | self._supply.metrics() | timing
        metrics |= self._clock.metrics(self._plan.stage.rollout.replicas, timing)
        metrics["perf/total_num_tokens"] = float(tokens)
        metrics["perf/throughput"] = tokens / max(timing["timing_s/step"], 1e-9)
        metrics["training/policy_version"] = float(self._version)
        metrics |= self._alarms.observe(step, metrics, trained, self._names(batch))
        self._context.log.log(self._plan.stage.name, step, metrics)
        self._context.display.step(step, metrics)
        self._alarms.refuse_standstill()

    @abstractmethod
    async def _start_roles(self, checkpoint: Path | None) -> PolicyRoles:
        """The roles of the stage, the trainer going on from a checkpoint if there is one."""

    @abstractmethod
    def _make_work(self, roles: PolicyRoles, clock: RolloutClock) -> ReplicaWork:
        """What generates and scores single tickets."""

    @abstractmethod
    def _make_supply(self, first: int, state: Mapping[str, Any] | None) -> Supply:
        """The prompts from an occurrence on, given what was kept of a supply before a resume."""

    @abstractmethod
    def _score(self, batch: RolloutBatch) -> list[ScoredRollout]:
        """Scores become rewards."""

    @abstractmethod
    async def _record(self, step: int, batch: RolloutBatch, samples: list[ScoredRollout]) -> int:
        """Writes the step's rollouts for people to read; returns where they end."""

    @abstractmethod
    def _tokens(self, batch: RolloutBatch) -> int:
        """Tokens of a batch, those that were not sampled included."""

    def _batch_metrics(self, batch: RolloutBatch) -> dict[str, float]:
        """Metrics of a batch beyond those of every pipeline."""
        return {}

    def _names(self, batch: RolloutBatch) -> Callable[[int], str]:
        """What the sample at a position of a batch is called."""
        return rollout_names(batch)

    def _connect(self, roles: PolicyRoles) -> None:
        plan, stage, waits = self._plan, self._plan.stage, self._context.waits
        self._trainer, self._teachers = roles.trainer, roles.teachers
        self._sync = WeightSync(
            roles.trainer,
            roles.actors,
            # Engines whose weights stay are not those of the learner.
            probe_ids=plan.probe_ids if stage.rollout.engine.follows else None,
            temperature=plan.sampling.temperature,
            tolerance=tolerance_of(stage.rollout, plan.model.dtype),
            waits=waits,
            deadline_s=stage.deadlines.sync_s,
        )
        roles.actors.bring_up_with(self._sync.bring_up)
        self._clock = RolloutClock(stage.rollout.engine.max_batch)
        self._work = self._make_work(roles, self._clock)
        self._evaluation = Evaluation.of(plan, self._work, waits)
        self._checkpoints = CheckpointSchedule(
            stage.name,
            stage.checkpoint,
            roles.trainer,
            self._context,
            progress=self._progress,
            times=self.result.times,
            last=self.result.steps,
        )

    async def _make_scheduler(self) -> RolloutScheduler[Prompt, Handle, Score]:
        plan, resume = self._plan, self._history.progress.scheduler if self._history else None
        async with self._context.waits.wait(
            "a replica for the rollouts", deadline_s=plan.stage.deadlines.start_s
        ):
            slots = await self._work.slots()
        self._supply = self._make_supply(
            resume.first_group if resume else 0, self._history.progress.prompts if self._history else None
        )
        policy = training_policy(plan.stage)
        return RolloutScheduler(
            prompts=self._supply,
            generate=None if policy.partial else self._work.generate,
            generate_part=self._work.generate_part if policy.partial else None,
            grade=self._work.grade,
            observe=self._supply.observe,
            traits=self._supply.traits,
            tag=self._supply.domain,
            replicas=slots,
            policy=policy,
            run_seed=plan.seed,
            resume=resume,
        )

    def _progress(self, files: Mapping[str, int]) -> StageProgress:
        snapshot = self._scheduler.snapshot()
        return self.result.progress(
            self._plan.stage.name,
            version=self._version,
            scheduler=snapshot,
            prompts=self._supply.state(snapshot.first_group),
            data=self._digest,
            files={**files, self._file: self._written},
            run_seconds=self._context.run_seconds(),
            alarms=self._alarms.state(),
        )
