"""Calls to every replica of a set at once, each under a deadline: those that do not answer are lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError, EngineUnavailable
from roll_rollout.replicas.member import Member
from roll_rollout.replicas.roster import DEATHS, Roster

_T = TypeVar("_T")


class LostMeanwhile(Exception):
    """A replica was lost while it was asked."""


async def ask_all(
    roster: Roster,
    what: str,
    call: Callable[[Engine], Awaitable[_T]],
    *,
    deadline_s: float,
    patient: bool = False,
) -> dict[str, _T]:
    """Returns what each replica answers, by name.

    Args:
        roster: The replicas; those that are dead or silent are lost to it.
        what: Names the call.
        call: Made on every engine.
        deadline_s: Seconds for one answer.
        patient: Whether one that has not answered by then is only busy: an error, and no loss.

    Raises:
        EngineUnavailable: None is left that answered; says how each is.
        EngineError: A replica refused the call, or, where one is patient, did not answer; names it.
    """
    members = roster.live()
    found = await asyncio.gather(
        *[asked(roster, each, what, call, deadline_s=deadline_s, patient=patient) for each in members],
        return_exceptions=True,
    )
    answers: dict[str, _T] = {}
    for member, result in zip(members, found, strict=True):
        if isinstance(result, LostMeanwhile):
            continue
        if isinstance(result, BaseException):
            raise result
        answers[member.name] = result
    require_some(roster, what, list(answers))
    return answers


async def asked(
    roster: Roster,
    member: Member,
    what: str,
    call: Callable[[Engine], Awaitable[_T]],
    *,
    deadline_s: float,
    patient: bool = False,
) -> _T:
    """Returns what one replica answers.

    Raises:
        LostMeanwhile: It is dead or silent.
        EngineError: It refused; names the replica.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await call(member.engine)
    except TimeoutError as error:
        if patient:
            busy = f"it still has {len(member.flights())} requests after {deadline_s} s"
            raise EngineError(f"{what}: replica {member.name!r}: {busy}") from error
        roster.lost(member, f"{what}: no answer within {deadline_s} s")
        raise LostMeanwhile from error
    except DEATHS as error:
        roster.lost(member, f"{what}: {error}")
        raise LostMeanwhile from error


def require_some(roster: Roster, what: str, names: Sequence[str]) -> None:
    """Returns if a replica answered.

    Raises:
        EngineUnavailable: None did; says how each is.
    """
    if not names:
        raise EngineUnavailable(f"{what}: no replica answered: {roster.described()}")
