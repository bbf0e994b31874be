"""Weights and adapters to all replicas in turn, while those whose turn it is not go on serving."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError
from roll_rollout.replicas.fan_out import LostMeanwhile, asked, require_some
from roll_rollout.replicas.member import Member
from roll_rollout.replicas.roster import Roster
from roll_rollout.weights import WeightReceipt

Load = Callable[[Engine], Awaitable[WeightReceipt]]


async def roll(
    roster: Roster,
    what: str,
    load: Load,
    *,
    version: int | None,
    checksum: Callable[[], str],
    at_once: int,
    deadline_s: float,
) -> WeightReceipt:
    """Returns the receipt that the replicas which are left have all given.

    Args:
        roster: The replicas. The caller holds its turn.
        what: Names the update.
        load: Brings it to one engine.
        version: Of the weights that the replica then has; None if they stay.
        checksum: Of what was sent; computed only if receipts differ.
        at_once: Most replicas that take it at the same time.
        deadline_s: Seconds for one of them.

    Raises:
        EngineUnavailable: None is left that took it; says how each is.
        EngineError: The first one that answered refused it; nothing has changed.
    """
    queue, receipts = deque(roster.live()), dict[Member, WeightReceipt]()
    while queue and not receipts:
        member = queue.popleft()
        try:
            receipts[member] = await _loaded(roster, member, what, load, deadline_s, version)
        except LostMeanwhile:
            continue
    room = asyncio.Semaphore(at_once)

    async def follow(member: Member) -> None:
        async with room:
            try:
                receipts[member] = await _loaded(roster, member, what, load, deadline_s, version)
            except LostMeanwhile:
                return
            except EngineError as error:
                # It holds other weights than those before it from now on, and cannot serve beside them.
                roster.lost(member, f"{what}: refused what another replica took: {error}")

    await asyncio.gather(*[follow(member) for member in queue])
    receipt = _agreed(roster, what, receipts, checksum)
    require_some(roster, what, [member.name for member in receipts if member.state != "lost"])
    return receipt


async def _loaded(
    roster: Roster, member: Member, what: str, load: Load, deadline_s: float, version: int | None
) -> WeightReceipt:
    """Returns a replica's receipt; meanwhile requests go to others."""
    if member.state == "serving":
        member.state, member.why = "syncing", f"{what} is on its way"
    try:
        receipt = await asked(roster, member, what, load, deadline_s=deadline_s)
        member.version = member.version if version is None else version
        return receipt
    finally:
        if member.state == "syncing":
            member.state, member.why = "serving", ""
            roster.notify()


def _agreed(
    roster: Roster, what: str, receipts: dict[Member, WeightReceipt], checksum: Callable[[], str]
) -> WeightReceipt:
    """Returns the receipt of all; replicas that gave another one than they should are lost."""
    given = list(receipts.values())
    require_some(roster, what, [member.name for member in receipts])
    right = given[0]
    if any(each != right for each in given):
        sent = checksum()
        right = next((each for each in given if each.checksum == sent), right)
        for member, receipt in receipts.items():
            if receipt != right:
                roster.lost(member, f"{what}: acknowledged {receipt}, sent was {right}")
    return right
