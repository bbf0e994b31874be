"""The callbacks that a scheduler drives, bound to the replicas of a stage and to those who score."""

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from roll_rewards import Score
from roll_rollout import EngineError, GenerateRequest, SamplingParams
from roll_scheduler import (
    Batch,
    Generated,
    Graded,
    Member,
    Part,
    RolloutScheduler,
    Ticket,
    TicketFailed,
    VersionSpan,
)

from roll_launch.detached import detach
from roll_launch.failures import RoleDied
from roll_launch.pipelines.careful_calls import CarefulCalls, DiedAlone
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.prompts import Prompt
from roll_launch.role_group import RoleGroup
from roll_launch.roles import SLOTS_PER_ACTOR, Actor, Handle, RewardWorker, Rollout, RolloutRecord

PENDING_SHOWN = 5

STOP_EVERY_S = 0.1

RolloutBatch = Batch[Prompt, Handle, Score]


class ReplicaWork(ABC):
    """Generates and scores single tickets on the replicas of a stage.

    A dead replica is reported to its group, which replaces it. The scheduler sends the tickets of a lost
    replica out again by itself.

    Args:
        actors: The replicas.
        clock: Told what is generated and graded when.

    Attributes:
        last_failure: Kind and message of the latest ticket that failed, or "".
    """

    def __init__(self, actors: RoleGroup[Actor], *, clock: RolloutClock) -> None:
        self._actors = actors
        self._clock = clock
        self._requests = itertools.count()
        self.last_failure = ""

    async def slots(self) -> dict[str, int]:
        """The replicas and how many tickets each takes at once; waits until there is one."""
        await self._actors.some()
        return dict.fromkeys(self._actors.live, SLOTS_PER_ACTOR)

    @contextlib.contextmanager
    def serving(self, scheduler: RolloutScheduler[Prompt, Handle, Score]) -> Iterator[None]:
        """While the body runs, the scheduler is told which replicas leave and which come back."""

        def lost(name: str, why: str) -> None:
            scheduler.remove_replica(name, why, returns=True)

        def joined(name: str) -> None:
            scheduler.add_replica(name, SLOTS_PER_ACTOR)

        with self._actors.told(lost, joined):
            yield

    @abstractmethod
    async def generate(self, ticket: Ticket, prompt: Prompt, replica: str) -> Generated[Handle]:
        """What one ticket asks for.

        Raises:
            TicketFailed: There is no result.
        """

    async def generate_part(
        self, ticket: Ticket, prompt: Prompt, replica: str, part: Part[Handle]
    ) -> Generated[Handle]:
        """As much of it as there is when it is to stop; work that cannot stop is done whole."""
        return await self.generate(ticket, prompt, replica)

    @abstractmethod
    async def grade(self, ticket: Ticket, prompt: Prompt, completion: Handle) -> Graded[Score]:
        """The score of what was generated.

        Raises:
            TicketFailed: There is no verdict.
        """

    def evaluation_metrics(self, batch: RolloutBatch) -> dict[str, float]:
        """What an evaluation says beyond accuracy and lengths."""
        return {}

    @staticmethod
    def pending(scheduler: RolloutScheduler[Prompt, Handle, Score]) -> Callable[[], str]:
        """What holds up `scheduler`, and its oldest tickets, for the watchdog."""
        return lambda: scheduler.why(most=PENDING_SHOWN).text()

    def _failed(self, kind: str, message: str) -> TicketFailed:
        self.last_failure = f"{kind}: {message}"
        return TicketFailed(kind, message)


class RolloutWork(ReplicaWork):
    """Generates and grades completions.

    A dead reward worker is replaced by its group like a replica; the grading that was lost is repeated here.

    Args:
        actors: The replicas.
        workers: Reward workers; each completion goes to the next one.
        sampling: For every request.
        clock: Told what is generated and graded when.
    """

    def __init__(
        self,
        actors: RoleGroup[Actor],
        workers: RoleGroup[RewardWorker],
        *,
        sampling: SamplingParams,
        clock: RolloutClock,
    ) -> None:
        super().__init__(actors, clock=clock)
        self._workers = workers
        self._careful = CarefulCalls(workers)
        self._sampling = sampling

    async def generate(self, ticket: Ticket, prompt: Prompt, replica: str) -> Generated[Handle]:
        """One completion.

        Raises:
            TicketFailed: The engine refused or lost the request.
        """
        rollout = await self._generated(self._request(ticket, prompt), replica)
        if rollout.finish == "abort":
            raise self._failed("abort", f"{replica} ended the request before its completion did")
        return Generated(
            completion=rollout.completion,
            tokens=rollout.tokens,
            oldest_version=rollout.oldest_version,
            truncated=rollout.finish == "length",
        )

    async def generate_part(
        self, ticket: Ticket, prompt: Prompt, replica: str, part: Part[Handle]
    ) -> Generated[Handle]:
        """One completion, or as much of it as there is when it is to stop; goes on from what was kept.

        Raises:
            TicketFailed: The engine refused or lost the request.
        """
        request = self._request(ticket, prompt)
        actor = self._actors.live[replica]

        async def stop_when_asked() -> None:
            await part.stopping.wait()
            while True:
                # Again and again, because the first may overtake the request itself.
                await actor.abort(request.id)
                await asyncio.sleep(STOP_EVERY_S)

        stopper = asyncio.get_running_loop().create_task(stop_when_asked())
        try:
            rollout = await self._generated(request, replica, part.kept)
        finally:
            # A role that died while it was asked is reported by the call that has its request.
            stopper.cancel()
            await asyncio.gather(stopper, return_exceptions=True)
        finished = rollout.finish != "abort"
        if not finished and not part.stopping.is_set():
            raise self._failed("abort", f"{replica} ended the request before its completion did")
        spans = sampled_after(rollout.versions, part.tokens)
        return Generated(
            completion=rollout.completion,
            tokens=rollout.tokens,
            oldest_version=min((span.version for span in spans), default=rollout.oldest_version),
            truncated=rollout.finish == "length",
            spans=spans,
            finished=finished,
        )

    def _request(self, ticket: Ticket, prompt: Prompt) -> GenerateRequest:
        return GenerateRequest(
            id=f"{next(self._requests)}",
            prompt_ids=prompt.token_ids,
            seed=ticket.seed,
            sampling=self._sampling,
        )

    async def _generated(self, request: GenerateRequest, replica: str, kept: Handle | None = None) -> Rollout:
        actor = self._actors.live[replica]
        try:
            with self._clock.generating(replica):
                return await actor.generate(request, kept)
        except EngineError as error:
            raise self._failed("engine", str(error)) from error
        except RoleDied as error:
            # Told of it, the scheduler has given this ticket to another replica already.
            self._actors.lost(replica, actor, str(error))
            raise self._failed("replica", str(error)) from error
        except asyncio.CancelledError:
            # The engine must not go on with what nobody waits for; the abort itself is not waited for.
            detach(actor.abort(request.id))
            raise

    async def grade(self, ticket: Ticket, prompt: Prompt, completion: Handle) -> Graded[Score]:
        """The score of one completion.

        What was being graded when a worker died is graded again with few others, and after another death
        alone, so that a completion that kills its grader is found and fails by itself.

        Raises:
            TicketFailed: The grader gave no verdict.
        """
        try:
            score = await self._careful.call(
                ticket.seed, lambda worker: worker.grade(completion, prompt.row.reference, prompt.columns)
            )
        except DiedAlone as error:
            what = f"{error} while it graded ticket {ticket.id} alone"
            raise self._failed("reward_worker", what) from error
        self._clock.graded()
        if score.failure is not None:
            raise self._failed(f"reward_{score.failure.kind}", score.failure.message)
        return Graded(score=score, value=score.value)

    async def record(self, path: Path, records: Sequence[RolloutRecord], *, offset: int) -> int:
        """Writes rollouts down from byte `offset` on; returns where they end."""
        while True:
            name, worker = await self._workers.next()
            try:
                return await worker.record(path, records, offset=offset)
            except RoleDied as error:
                self._workers.lost(name, worker, str(error))


def sampled_after(versions: Sequence[tuple[int, int]], tokens: int) -> tuple[VersionSpan, ...]:
    """Who sampled what comes after the first `tokens` tokens.

    Args:
        versions: Pairs (policy version, tokens) of a completion.
        tokens: How many to leave out.
    """
    spans: list[VersionSpan] = []
    for version, run in versions:
        left_out = min(run, tokens)
        tokens -= left_out
        if run > left_out:
            spans.append(VersionSpan(version=version, tokens=run - left_out))
    return tuple(spans)


def members_of(batch: RolloutBatch) -> list[Member[Handle, Score]]:
    """The members of all groups, in order of group and member."""
    return [member for group in batch.groups for member in group.members]
