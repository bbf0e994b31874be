"""Worker pools that graders share: one for each purpose on each running event loop. Called by graders."""

import asyncio
import weakref
from collections.abc import Sequence

from roll_rewards.workers import WorkerLimits, WorkerPool

_pools: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, WorkerPool]]"
_pools = weakref.WeakKeyDictionary()


def shared_pool(
    purpose: str, *, workers: int, preload: Sequence[str] = (), limits: WorkerLimits | None = None
) -> WorkerPool:
    """The pool of the running event loop for a purpose; that of a loop which has ended is taken over, warm.

    Args:
        purpose: For example `math`.
        workers: Processes of a new pool, at least 1; an existing one keeps its own number.
        preload: See `WorkerPool`.
        limits: See `WorkerPool`.
    """
    loop = asyncio.get_running_loop()
    mine = _pools.setdefault(loop, {})
    if purpose not in mine:
        idle = [pools for other, pools in list(_pools.items()) if purpose in pools and not other.is_running()]
        pool = idle[0].pop(purpose) if idle else None
        mine[purpose] = pool or WorkerPool(workers=workers, preload=preload, limits=limits)
    return mine[purpose]
