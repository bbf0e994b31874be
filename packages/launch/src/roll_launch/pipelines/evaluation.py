"""Accuracy on held-out prompts, sampled like the training rollouts."""

import numpy as np
from roll_scheduler import RolloutScheduler, SchedulerPolicy

from roll_launch.errors import RollLaunchError
from roll_launch.pipelines.collection import ReplicaWork, members_of
from roll_launch.pipelines.scheduling import evaluation_policy
from roll_launch.plan import PolicyPlan
from roll_launch.prompts import PromptSet
from roll_launch.seeds import derived_seed
from roll_launch.waits import Waits


class EvaluationError(RollLaunchError):
    """An evaluation came to no result."""


class Evaluation:
    """Samples each held-out prompt once, with the same seeds every time.

    Args:
        prompts: Held out from training.
        work: Generates and grades.
        policy: One batch of all prompts, in groups of one.
        seed: Of the samples.
        waits: Of the run.
        deadline_s: Seconds that one evaluation may take.
    """

    def __init__(
        self,
        prompts: PromptSet,
        work: ReplicaWork,
        policy: SchedulerPolicy,
        *,
        seed: int,
        waits: Waits,
        deadline_s: float,
    ) -> None:
        self._prompts = prompts
        self._work = work
        self._policy = policy
        self._seed = seed
        self._waits = waits
        self._deadline_s = deadline_s

    @classmethod
    def of(cls, plan: PolicyPlan, work: ReplicaWork, waits: Waits) -> "Evaluation | None":
        """The evaluation that a stage plans; None if it holds no prompts out."""
        if plan.heldout is None:
            return None
        stage = plan.stage
        policy = evaluation_policy(stage, len(plan.heldout.prompts))
        return cls(
            plan.heldout,
            work,
            policy,
            seed=derived_seed(plan.seed, "evaluation"),
            waits=waits,
            deadline_s=stage.deadlines.rollout_s,
        )

    async def run(self, step: int) -> dict[str, float]:
        """One pass over the held-out prompts.

        Returns:
            eval/accuracy (mean score), eval/samples (those with a verdict), eval/failures, and lengths.

        Raises:
            EvaluationError: No sample has a verdict.
        """
        async with self._waits.wait(
            f"a replica for the evaluation after step {step}", deadline_s=self._deadline_s
        ):
            slots = await self._work.slots()
        scheduler = RolloutScheduler(
            prompts=iter(self._prompts.prompts),
            generate=self._work.generate,
            grade=self._work.grade,
            replicas=slots,
            policy=self._policy,
            run_seed=self._seed,
        )
        async with (
            scheduler,
            self._waits.wait(
                f"evaluation after step {step}",
                deadline_s=self._deadline_s,
                pending=self._work.pending(scheduler),
            ),
        ):
            with self._work.serving(scheduler):
                batch = await scheduler.next_batch()
        members = members_of(batch)
        if not members:
            raise EvaluationError(
                f"the evaluation after step {step} has no verdict; "
                f"failed attempts by kind: {dict(batch.failures)}; the last one: {self._work.last_failure}"
            )
        scores = np.array([member.graded.value for member in members], dtype=np.float64)
        lengths = np.array([member.generated.tokens for member in members], dtype=np.float64)
        return {
            "eval/accuracy": float(scores.mean()),
            "eval/samples": float(len(scores)),
            "eval/failures": float(sum(batch.failures.values())),
            "eval/response_length/mean": float(lengths.mean()),
            "eval/response_length/max": float(lengths.max()),
            **self._work.evaluation_metrics(batch),
        }
