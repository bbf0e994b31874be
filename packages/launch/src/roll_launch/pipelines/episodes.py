"""Episodes as the tickets of a scheduler: each is played by an environment worker on the ticket's replica."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from roll_rewards import Score
from roll_scheduler import Generated, Graded, Member, Ticket

from roll_launch.agentic_plan import EpisodeStart
from roll_launch.detached import detach
from roll_launch.episode_roles import REPLICA, EnvironmentWorker, EpisodeRecord, EpisodeRequest, PlayedEpisode
from roll_launch.failures import RoleDied
from roll_launch.pipelines.careful_calls import CarefulCalls, DiedAlone
from roll_launch.pipelines.collection import ReplicaWork, RolloutBatch, members_of
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.prompts import Prompt
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, Handle

CUT_OFF = frozenset(
    {"truncated", "max_turns", "max_tokens", "max_tool_calls", "time_limit", "context", "length"}
)
"""Why an episode ended that was not over by its own rules."""


class EpisodeWork(ReplicaWork):
    """Plays the episodes of single tickets.

    An episode whose environment worker dies is played again from its start by another one.

    Args:
        actors: The replicas.
        workers: Environment workers; each episode goes to the next one.
        clock: Told what is played when.
    """

    def __init__(
        self, actors: RoleGroup[Actor], workers: RoleGroup[EnvironmentWorker], *, clock: RolloutClock
    ) -> None:
        super().__init__(actors, clock=clock)
        self._workers = workers
        self._careful = CarefulCalls(workers)

    async def generate(self, ticket: Ticket, prompt: Prompt, replica: str) -> Generated[Handle]:
        """One episode.

        Raises:
            TicketFailed: It has no verdict.
        """
        actor = self._actors.live[replica]

        async def play(worker: EnvironmentWorker) -> PlayedEpisode:
            # Named anew each time, so that an abort never meets the episode that replaces another one.
            request = _request(ticket, prompt, f"{next(self._requests)}")
            try:
                return await worker.play(request, actor)
            except asyncio.CancelledError:
                detach(worker.abort(request.id))
                raise

        try:
            with self._clock.generating(replica):
                played = await self._careful.call(ticket.seed, play)
        except DiedAlone as error:
            what = f"{error} while it played {prompt.key} for ticket {ticket.id} alone"
            raise self._failed("environment_worker", what) from error
        if played.failure is not None:
            kind, message = played.failure
            if kind == REPLICA:
                # Told of it, the scheduler gives this ticket to another replica.
                self._actors.lost(replica, actor, message)
            raise self._failed(kind, message)
        return Generated(
            completion=played,
            tokens=played.tokens,
            oldest_version=played.oldest_version,
            truncated=played.status in CUT_OFF,
        )

    async def grade(self, ticket: Ticket, prompt: Prompt, completion: Handle) -> Graded[Score]:
        """The reward that the environment gave."""
        played = played_of(completion)
        self._clock.graded()
        return Graded(score=Score(value=played.reward, parsed=played.status), value=played.reward)

    def evaluation_metrics(self, batch: RolloutBatch) -> dict[str, float]:
        """Success and turns, and success by environment where there are several."""
        played = [episode for _, episode in played_in(batch)]
        by_title: dict[str, list[bool]] = {}
        for group in batch.groups:
            own = by_title.setdefault(group.prompt.row.domain, [])
            own += [played_of(member.generated.completion).success for member in group.members]
        metrics = {
            "eval/success_rate": sum(episode.success for episode in played) / len(played),
            "eval/turns/mean": sum(episode.turns for episode in played) / len(played),
        }
        if len(by_title) > 1:
            metrics |= {f"eval/success_rate/{title}": sum(own) / len(own) for title, own in by_title.items()}
        return metrics

    async def record(self, path: Path, records: Sequence[EpisodeRecord], *, offset: int) -> int:
        """Writes episodes down from byte `offset` on; returns where they end."""
        while True:
            name, worker = await self._workers.next()
            try:
                return await worker.record(path, records, offset=offset)
            except RoleDied as error:
                self._workers.lost(name, worker, str(error))


def played_of(completion: Handle) -> PlayedEpisode:
    """What a ticket came to.

    Raises:
        TypeError: It is no episode.
    """
    if not isinstance(completion, PlayedEpisode):
        raise TypeError(f"an episode was expected, got {type(completion).__name__}")
    return completion


def played_in(batch: RolloutBatch) -> list[tuple[Member[Handle, Score], PlayedEpisode]]:
    """The members of a batch in order, each with its episode."""
    return [(member, played_of(member.generated.completion)) for member in members_of(batch)]


def _request(ticket: Ticket, prompt: Prompt, name: str) -> EpisodeRequest:
    if not isinstance(prompt, EpisodeStart):
        raise TypeError(f"a start of an environment was expected, got {type(prompt).__name__}")
    return EpisodeRequest(id=name, environment=prompt.environment, start=prompt.start, seed=ticket.seed)
