"""The two callbacks that a scheduler drives, bound to the actors and reward workers of a stage."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from roll_rewards import Score
from roll_rollout import EngineError, GenerateRequest, SamplingParams
from roll_scheduler import Batch, Generated, Graded, Member, RolloutScheduler, Ticket, TicketFailed

from roll_launch.plan import Prompt
from roll_launch.roles import Actor, Handle, RewardWorker, RolloutRecord

SLOTS_PER_ACTOR = 1024
"""Tickets that a replica holds at once. Engines queue what does not fit their batch, in order, so that the
batches they form do not depend on the timing of the driver."""

PENDING_SHOWN = 5

RolloutBatch = Batch[Prompt, Handle, Score]


class RolloutWork:
    """Generates and grades single tickets.

    Args:
        actors: Replicas, by name.
        workers: Reward workers; each completion goes to the next one.
        sampling: For every request.

    Attributes:
        last_failure: Kind and message of the latest ticket that failed, or "".
    """

    def __init__(
        self, actors: Mapping[str, Actor], workers: Sequence[RewardWorker], *, sampling: SamplingParams
    ) -> None:
        self._actors = actors
        self._workers = workers
        self._turn = itertools.cycle(workers)
        self._sampling = sampling
        self._requests = itertools.count()
        self.last_failure = ""

    def slots(self) -> dict[str, int]:
        """The replicas and how many tickets each takes at once."""
        return dict.fromkeys(self._actors, SLOTS_PER_ACTOR)

    async def generate(self, ticket: Ticket, prompt: Prompt, replica: str) -> Generated[Handle]:
        """One completion.

        Raises:
            TicketFailed: The engine refused or lost the request.
        """
        request = GenerateRequest(
            id=f"{next(self._requests)}",
            prompt_ids=prompt.token_ids,
            seed=ticket.seed,
            sampling=self._sampling,
        )
        actor = self._actors[replica]
        try:
            rollout = await actor.generate(request)
        except EngineError as error:
            raise self._failed("engine", str(error)) from error
        except asyncio.CancelledError:
            # The engine must not go on with what nobody waits for; the abort itself is not waited for.
            _detach(actor.abort(request.id))
            raise
        if rollout.finish == "abort":
            raise self._failed("abort", f"{replica} ended the request before its completion did")
        return Generated(
            completion=rollout.completion,
            tokens=rollout.tokens,
            oldest_version=rollout.oldest_version,
            truncated=rollout.finish == "length",
        )

    async def grade(self, ticket: Ticket, prompt: Prompt, completion: Handle) -> Graded[Score]:
        """The score of one completion.

        Raises:
            TicketFailed: The grader gave no verdict.
        """
        score = await next(self._turn).grade(completion, prompt.row.reference, prompt.row.columns)
        if score.failure is not None:
            raise self._failed(f"reward_{score.failure.kind}", score.failure.message)
        return Graded(score=score, value=score.value)

    def _failed(self, kind: str, message: str) -> TicketFailed:
        self.last_failure = f"{kind}: {message}"
        return TicketFailed(kind, message)

    async def record(self, path: Path, records: Sequence[RolloutRecord]) -> None:
        """Writes rollouts down; always the same worker, so that a file has one writer."""
        await self._workers[0].record(path, records)

    @staticmethod
    def pending(scheduler: RolloutScheduler[Prompt, Handle, Score]) -> Callable[[], str]:
        """Describes the oldest tickets of `scheduler`, for the watchdog."""

        def describe() -> str:
            tickets = scheduler.pending()
            shown = [
                f"group {late.ticket.group} member {late.ticket.member} {late.state} for {late.age_s:.0f} s"
                + (f" on {late.replica}" if late.replica else "")
                for late in tickets[:PENDING_SHOWN]
            ]
            more = len(tickets) - len(shown)
            return f"{len(tickets)} tickets: " + "; ".join(shown) + (f"; and {more} more" if more else "")

        return describe


def members_of(batch: RolloutBatch) -> list[Member[Handle, Score]]:
    """The members of all groups, in order of group and member."""
    return [member for group in batch.groups for member in group.members]


_detached: set["asyncio.Task[None]"] = set()


def _detach(work: Coroutine[object, object, None]) -> None:
    """Runs `work` beside the caller and keeps it alive until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    _detached.add(task)
    task.add_done_callback(_forget)


def _forget(task: "asyncio.Task[None]") -> None:
    _detached.discard(task)
    if not task.cancelled():
        task.exception()
