"""Calls that are repeated when the worker under them dies, ever more carefully. Made by pipelines."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from roll_launch.errors import RollLaunchError
from roll_launch.failures import RoleDied
from roll_launch.role_group import Living, RoleGroup

Result = TypeVar("Result")
Worker = TypeVar("Worker", bound=Living)

SECOND_CHANCES = 8
"""Calls that are repeated at once after their worker died; those under which another dies, one by one."""


class DiedAlone(RollLaunchError):
    """A worker died while it had this one call."""


class CarefulCalls(Generic[Worker]):
    """Gives calls to the workers of a group in turn.

    What a worker had when it died is repeated with few others, and after another death alone, so that a call
    that kills its worker is found and fails by itself.

    Args:
        workers: Told of each death.
    """

    def __init__(self, workers: RoleGroup[Worker]) -> None:
        self._workers = workers
        self._deaths: Counter[int] = Counter()
        self._under_way: Counter[Worker] = Counter()
        self._died_with: dict[Worker, int] = {}
        self._lanes = (contextlib.nullcontext(), asyncio.Semaphore(SECOND_CHANCES), asyncio.Semaphore(1))

    async def call(self, key: int, call: Callable[[Worker], Awaitable[Result]]) -> Result:
        """The answer of the next worker.

        Args:
            key: Names what is asked, also when it is asked again.
            call: Asks a worker.

        Raises:
            DiedAlone: A worker died of it.
        """
        while True:
            lane = self._lanes[min(self._deaths[key], len(self._lanes) - 1)]
            async with lane:
                name, worker = await self._workers.next()
                self._under_way[worker] += 1
                try:
                    answer = await call(worker)
                    break
                except RoleDied as error:
                    if error.role != name:
                        raise
                    self._workers.lost(name, worker, str(error))
                    # Counted when the first of them hears of the death; the others leave one by one.
                    alone = self._died_with.setdefault(worker, self._under_way[worker]) == 1
                finally:
                    self._under_way[worker] -= 1
            self._deaths[key] += 1
            if alone:
                raise DiedAlone(f"{name} died")
        self._deaths.pop(key, None)
        return answer
