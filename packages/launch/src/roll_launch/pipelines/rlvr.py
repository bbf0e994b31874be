"""Reinforcement learning with verifiable rewards.

A step: prompts -> scheduler -> engines -> graders -> scheduler -> trainer -> weight sync -> engines.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from roll_rewards import overlong_penalty
from roll_scheduler import RolloutScheduler

from roll_launch.pipelines import specs
from roll_launch.pipelines.checkpoints import CheckpointSchedule
from roll_launch.pipelines.collection import RolloutBatch, RolloutWork, members_of
from roll_launch.pipelines.evaluation import Evaluation
from roll_launch.pipelines.rollout_metrics import rollout_metrics
from roll_launch.pipelines.scheduling import training_policy
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import RlvrPlan
from roll_launch.roles import Actor, RewardWorker, RolloutRecord, ScoredRollout, Trainer
from roll_launch.weight_sync import WeightSync

Role = TypeVar("Role")


class RlvrPipeline:
    """Runs one stage of reinforcement learning."""

    def __init__(self, plan: RlvrPlan, context: RunContext) -> None:
        self._plan = plan
        self._context = context
        self.result = StageResult()

    async def run(self) -> None:
        """Trains for the planned number of steps, with evaluations before, during and after."""
        stage, context = self._plan.stage, self._context
        await self._start_roles()
        context.display.begin(stage.name, stage.steps)
        await self._sync.publish(self._version)
        await self._evaluate(0, "before")
        self.result.times.end_step()
        async with self._scheduler:
            for step in range(1, stage.steps + 1):
                context.interrupt.stop_at_boundary()
                await self._step(step)
        await self._evaluate(stage.steps, "after")
        await self._checkpoints.final(self.result.times)
        async with context.waits.wait("peak memory of the trainer", deadline_s=stage.deadlines.sync_s):
            self.result.peak_rss_gb = await self._trainer.peak_rss_gb()

    async def _step(self, step: int) -> None:
        """One step; when it returns, step, version and weights of all roles agree."""
        times, stage = self.result.times, self._plan.stage
        with times.phase("step"):
            with times.phase("gen"):
                batch = await self._generate(step)
            samples = self._score(batch)
            with times.phase("update_actor"):
                async with self._context.waits.wait(
                    f"update of step {step}", deadline_s=stage.deadlines.step_s
                ):
                    metrics = await self._trainer.policy_step(samples)
            with times.phase("weight_sync"):
                await self._publish(metrics)
            if stage.evaluation is not None and step % stage.evaluation.every == 0 and step < stage.steps:
                metrics |= await self._evaluate(step, "during")
            await self._checkpoints.after_step(step, times)
            if self._context.config.tracking.rollouts:
                await self._record(step, batch, samples)
        self._finish(step, batch, metrics)

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
            return await self._scheduler.next_batch()

    def _score(self, batch: RolloutBatch) -> list[ScoredRollout]:
        """Scores become rewards."""
        members = members_of(batch)
        rewards = np.array([member.graded.value for member in members], dtype=np.float64)
        shaping = self._plan.stage.rewards.overlong
        if shaping is not None:
            lengths = np.array([member.generated.tokens for member in members])
            rewards = rewards + overlong_penalty(
                lengths, max_tokens=self._plan.sampling.max_tokens, buffer_tokens=shaping.buffer_tokens
            )
        return [
            ScoredRollout(
                completion=member.generated.completion, reward=float(reward), group=member.ticket.group
            )
            for member, reward in zip(members, rewards, strict=True)
        ]

    async def _publish(self, metrics: Mapping[str, float]) -> None:
        """The new weights get the next version number and go to every replica."""
        # A batch whose every sample is masked is not trained on, and has neither of the two.
        changed = metrics.get("actor/grad_norm", 0.0) > 0 and metrics.get("actor/lr", 0.0) > 0
        self._version += 1
        await self._sync.publish(self._version, weights_changed=changed)

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

    async def _record(self, step: int, batch: RolloutBatch, samples: list[ScoredRollout]) -> None:
        """Writes the step's rollouts for people to read."""
        prompts = {group.id: group.prompt for group in batch.groups}
        records = [
            RolloutRecord(
                step=step,
                group=member.ticket.group,
                member=member.ticket.member,
                prompt=prompts[member.ticket.group].row.text,
                reference=prompts[member.ticket.group].row.reference,
                completion=member.generated.completion,
                tokens=member.generated.tokens,
                finish="length" if member.generated.truncated else "stop",
                score=member.graded.score.value,
                reward=sample.reward,
                parsed=member.graded.score.parsed,
            )
            for member, sample in zip(members_of(batch), samples, strict=True)
        ]
        path = self._context.directory.rollouts(self._plan.stage.name)
        deadline_s = self._plan.stage.deadlines.sync_s
        async with self._context.waits.wait(f"record of step {step}", deadline_s=deadline_s):
            await self._work.record(path, records)

    def _finish(self, step: int, batch: RolloutBatch, metrics: dict[str, float]) -> None:
        """Books the step."""
        tokens = sum(
            len(group.prompt.token_ids) + member.generated.tokens
            for group in batch.groups
            for member in group.members
        )
        self.result.steps = step
        self.result.samples += len(members_of(batch))
        self.result.tokens += tokens
        timing = self.result.times.end_step()
        metrics |= rollout_metrics(batch) | self._scheduler.metrics() | timing
        metrics["perf/total_num_tokens"] = float(tokens)
        metrics["perf/throughput"] = tokens / max(timing["timing_s/step"], 1e-9)
        metrics["training/policy_version"] = float(self._version)
        self._context.log.log(self._plan.stage.name, step, metrics)
        self._context.display.step(step, metrics)

    async def _start_roles(self) -> None:
        """Places trainer, actors and reward workers, and what connects them."""
        plan, stage, context = self._plan, self._plan.stage, self._context
        runtime, waits = context.runtime, context.waits
        starting = {"trainer", "actors", "reward workers"}

        async def started(name: str, role: Awaitable[Role]) -> Role:
            made = await role
            starting.discard(name)
            return made

        async with (
            waits.wait(
                f"start of the roles of {stage.name}",
                deadline_s=stage.deadlines.start_s,
                pending=lambda: ", ".join(sorted(starting)),
            ),
            asyncio.TaskGroup() as group,
        ):
            trainer = runtime.start_trainer(specs.policy_trainer(plan, processors=context.processors))
            actors = runtime.start_actors(
                specs.actor(plan, processors=context.processors), stage.rollout.replicas
            )
            workers = runtime.start_reward_workers(specs.reward_worker(plan), stage.rewards.workers)
            starts = (
                group.create_task(started("trainer", trainer)),
                group.create_task(started("actors", actors)),
                group.create_task(started("reward workers", workers)),
            )
        self._connect(starts[0].result(), starts[1].result(), starts[2].result())

    def _connect(
        self, trainer: Trainer, actors: Mapping[str, Actor], workers: Sequence[RewardWorker]
    ) -> None:
        plan, stage, waits = self._plan, self._plan.stage, self._context.waits
        self._trainer = trainer
        self._version = 0
        self._sync = WeightSync(trainer, actors, waits=waits, deadline_s=stage.deadlines.sync_s)
        self._work = RolloutWork(actors, workers, sampling=plan.sampling)
        self._scheduler = RolloutScheduler(
            prompts=plan.prompts.endless(plan.seed),
            generate=self._work.generate,
            grade=self._work.grade,
            replicas=self._work.slots(),
            policy=training_policy(stage),
            run_seed=plan.seed,
        )
        self._evaluation = Evaluation.of(plan, self._work, waits)
        self._checkpoints = CheckpointSchedule(stage.name, stage.checkpoint, trainer, self._context)
