"""Reinforcement learning in environments.

A step: starts -> scheduler -> environment workers, which ask engines turn by turn -> scheduler -> trainer ->
weight sync -> engines.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roll_launch.agentic_plan import AgenticPlan, EpisodeStart
from roll_launch.episode_roles import EpisodeRecord
from roll_launch.history import StageHistory
from roll_launch.pipelines.agentic_roles import AgenticRoles, start_agentic_roles
from roll_launch.pipelines.collection import ReplicaWork, RolloutBatch
from roll_launch.pipelines.episode_metrics import episode_metrics
from roll_launch.pipelines.episode_supply import EpisodeSupply
from roll_launch.pipelines.episodes import EpisodeWork, played_in
from roll_launch.pipelines.policy import PolicyPipeline
from roll_launch.pipelines.policy_roles import PolicyRoles
from roll_launch.pipelines.prompt_supply import Supply
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.pipelines.stage import RunContext
from roll_launch.roles import ScoredRollout


class AgenticPipeline(PolicyPipeline):
    """Runs one stage of reinforcement learning on episodes."""

    def __init__(self, plan: AgenticPlan, context: RunContext, history: StageHistory | None) -> None:
        super().__init__(plan, context, history)
        self._agentic = plan

    async def _start_roles(self, checkpoint: Path | None) -> AgenticRoles:
        self._roles = await start_agentic_roles(self._agentic, self._context, checkpoint=checkpoint)
        return self._roles

    def _make_work(self, roles: PolicyRoles, clock: RolloutClock) -> ReplicaWork:
        self._episodes = EpisodeWork(roles.actors, self._roles.workers, clock=clock)
        return self._episodes

    def _make_supply(self, first: int, state: Mapping[str, Any] | None) -> Supply:
        return EpisodeSupply(self._agentic, first=first)

    def _score(self, batch: RolloutBatch) -> list[ScoredRollout]:
        return [
            ScoredRollout(completion=played.episode, reward=played.reward, group=member.ticket.group)
            for member, played in played_in(batch)
        ]

    def _tokens(self, batch: RolloutBatch) -> int:
        return sum(played.context for _, played in played_in(batch))

    def _batch_metrics(self, batch: RolloutBatch) -> dict[str, float]:
        return episode_metrics([played for _, played in played_in(batch)])

    def _names(self, batch: RolloutBatch) -> Callable[[int], str]:
        """An episode may be several samples."""
        starts = {group.id: group.prompt.key for group in batch.groups}
        names = [
            f"group {member.ticket.group} member {member.ticket.member} ({starts[member.ticket.group]})"
            for member, played in played_in(batch)
            for _ in range(played.samples)
        ]
        return names.__getitem__

    async def _record(self, step: int, batch: RolloutBatch, samples: list[ScoredRollout]) -> int:
        starts = {group.id: group.prompt for group in batch.groups}
        records = []
        for (member, played), sample in zip(played_in(batch), samples, strict=True):
            start = starts[member.ticket.group]
            assert isinstance(start, EpisodeStart)
            records.append(
                EpisodeRecord(
                    step=step,
                    group=member.ticket.group,
                    member=member.ticket.member,
                    seed=member.ticket.seed,
                    environment=start.environment,
                    start=start.start,
                    played=played,
                    reward=sample.reward,
                )
            )
        return await self._episodes.record(self._path, records, offset=self._written)
