"""The unit of scheduling: one completion of one prompt. Made by the core, handed to callers' functions."""

import enum
import hashlib
import operator
from dataclasses import dataclass

from roll_scheduler.errors import SchedulerError

__all__ = ["PendingTicket", "Ticket", "TicketState", "as_integer", "ticket_seed"]


class TicketState(enum.StrEnum):
    """Where a ticket is: WAITING -> RUNNING -> GRADING -> READY -> DELIVERED or DROPPED.

    An attempt that fails, is aborted or stopped goes back to WAITING. What was delivered is in training until
    the next batch is asked for, and then counts as trained.
    """

    WAITING = "waiting"
    RUNNING = "running"
    GRADING = "grading"
    READY = "ready"
    DELIVERED = "delivered"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One completion to produce, for example `Ticket(id=13, group=3, member=1, attempt=0, seed=77...)`.

    Attributes:
        id: Unique in the run: group times the most members that one has, plus member.
        group: Occurrence number of the prompt in the run, 0, 1, 2, ...
        member: Index of the completion in its group, from 0.
        attempt: 0 at first; one more each time the ticket is sent out again.
        seed: Sampling seed, 0 to 2^63 - 1; the same for every attempt.
        continues: Tokens of earlier attempts that this one goes on from; 0 begins anew. Above 0 only with
            partial rollouts.
    """

    id: int
    group: int
    member: int
    attempt: int
    seed: int
    continues: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTicket:
    """A ticket that is being waited for.

    Attributes:
        ticket: The ticket.
        state: WAITING (for a slot), RUNNING (on a replica) or GRADING.
        age_s: Seconds in this state.
        replica: Where it runs, None unless RUNNING.
    """

    ticket: Ticket
    state: TicketState
    age_s: float
    replica: str | None


def ticket_seed(run_seed: int, group: int, member: int) -> int:
    """Sampling seed of a completion, 0 to 2^63 - 1, the same in every process and on every platform.

    It depends on nothing but its arguments, so a completion keeps its seed on another replica, in another
    attempt and after a resume.

    Args:
        run_seed: Seed of the run, any integer.
        group: Occurrence number of the prompt in the run.
        member: Index of the completion in its group.
    """
    digest = hashlib.blake2b(f"{run_seed}/{group}/{member}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def as_integer(number: object, what: str) -> int:
    """A whole number of any library's integer type as one of Python's, which JSON can hold.

    Args:
        number: The number.
        what: What it is, for the message.

    Raises:
        SchedulerError: If it is no integer.
    """
    try:
        if isinstance(number, bool):  # operator.index() would take it
            raise TypeError("bool")
        return operator.index(number)  # type: ignore[arg-type]  # the error is what this is for
    except TypeError as error:
        raise SchedulerError(f"{what}: got {number!r}, allowed is an integer") from error
