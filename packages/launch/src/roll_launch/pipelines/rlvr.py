"""Reinforcement learning with verifiable rewards.

A step: prompts -> scheduler -> engines -> graders -> scheduler -> trainer -> weight sync -> engines.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from roll_rewards import overlong_penalty

from roll_launch.history import StageHistory
from roll_launch.pipelines.collection import ReplicaWork, RolloutBatch, RolloutWork, members_of
from roll_launch.pipelines.policy import PolicyPipeline
from roll_launch.pipelines.policy_roles import PolicyRoles
from roll_launch.pipelines.prompt_supply import PromptSupply, Supply
from roll_launch.pipelines.rlvr_roles import RlvrRoles, start_rlvr_roles
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import RlvrPlan
from roll_launch.roles import RolloutRecord, ScoredRollout


class RlvrPipeline(PolicyPipeline):
    """Runs one stage of reinforcement learning on completions that graders score."""

    def __init__(self, plan: RlvrPlan, context: RunContext, history: StageHistory | None) -> None:
        super().__init__(plan, context, history)
        self._rlvr = plan

    async def _start_roles(self, checkpoint: Path | None) -> RlvrRoles:
        self._roles = await start_rlvr_roles(self._rlvr, self._context, checkpoint=checkpoint)
        return self._roles

    def _make_work(self, roles: PolicyRoles, clock: RolloutClock) -> ReplicaWork:
        self._rollouts = RolloutWork(
            roles.actors, self._roles.workers, sampling=self._rlvr.sampling, clock=clock
        )
        return self._rollouts

    def _make_supply(self, first: int, state: Mapping[str, Any] | None) -> Supply:
        return PromptSupply(self._rlvr, first=first, state=state)

    def _tokens(self, batch: RolloutBatch) -> int:
        return sum(
            len(group.prompt.token_ids) + member.generated.tokens
            for group in batch.groups
            for member in group.members
        )

    def _score(self, batch: RolloutBatch) -> list[ScoredRollout]:
        members = members_of(batch)
        rewards = np.array([member.graded.value for member in members], dtype=np.float64)
        shaping = self._rlvr.stage.rewards.overlong
        if shaping is not None:
            lengths = np.array([member.generated.tokens for member in members])
            rewards = rewards + overlong_penalty(
                lengths, max_tokens=self._rlvr.sampling.max_tokens, buffer_tokens=shaping.buffer_tokens
            )
        domains = {group.id: group.prompt.row.domain for group in batch.groups}
        return [
            ScoredRollout(
                completion=member.generated.completion,
                reward=float(reward),
                group=member.ticket.group,
                domain=domains[member.ticket.group],
            )
            for member, reward in zip(members, rewards, strict=True)
        ]

    async def _record(self, step: int, batch: RolloutBatch, samples: list[ScoredRollout]) -> int:
        prompts = {group.id: group.prompt for group in batch.groups}
        records = [
            RolloutRecord(
                step=step,
                group=member.ticket.group,
                member=member.ticket.member,
                seed=member.ticket.seed,
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
        return await self._rollouts.record(self._path, records, offset=self._written)
