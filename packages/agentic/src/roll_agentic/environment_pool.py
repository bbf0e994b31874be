"""Environments of one kind, lent to one episode after the other. Used by whoever plays many."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable

from roll_agentic.boundary import close_environment, made
from roll_agentic.environment import Environment, Reset, Step
from roll_agentic.errors import AgenticError, DeadlineMissed, EnvironmentFault


class Lease:
    """An environment for the time of an episode.

    Attributes:
        environment: The environment.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.is_broken = False

    def discard(self) -> None:
        """It is not lent out again: something went wrong in it."""
        self.is_broken = True


class EnvironmentPool:
    """At most so many environments at a time; each is used again until it is discarded.

    Args:
        make: Makes one; called in a thread, so it may block.
        size: Environments at a time, at least 1.
        deadline_s: Seconds for making one, above 0.

    Raises:
        AgenticError: A number is out of its range.
    """

    def __init__(self, make: Callable[[], Environment], *, size: int, deadline_s: float = 60.0) -> None:
        if size < 1 or not deadline_s > 0:
            raise AgenticError(
                f"a pool needs size of at least 1 and deadline_s above 0, got {size}, {deadline_s}"
            )
        self._make = make
        self._deadline_s = deadline_s
        self._gate = asyncio.Semaphore(size)
        self._free: list[Environment] = []

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """An environment while the body runs; waits until there is one. One whose body raises is discarded.

        Raises:
            EnvironmentFault: None can be made.
        """
        async with self._gate:
            lease = Lease(self._free.pop() if self._free else await self._made())
            try:
                yield lease
            except BaseException:
                lease.discard()
                raise
            finally:
                if lease.is_broken:
                    await close_environment(lease.environment)
                else:
                    self._free.append(lease.environment)

    async def close(self) -> None:
        """Close those that nobody has now."""
        free, self._free = self._free, []
        await asyncio.gather(*(close_environment(environment) for environment in free))

    async def _made(self) -> Environment:
        try:
            return await made(self._make, deadline_s=self._deadline_s)
        except DeadlineMissed as missed:
            raise EnvironmentFault("deadline", f"an environment was not made: {missed}") from missed
        except Exception as error:
            # Boundary to foreign code: a third party's factory may raise anything.
            message = f"an environment cannot be made: {type(error).__name__}: {error}"
            raise EnvironmentFault("error", message) from error


class InlineEnvironment:
    """An environment whose methods are called in the event loop itself, which saves a thread.

    For environments that answer at once: while one does not, nothing else goes on.

    Args:
        environment: Any.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, *, seed: int) -> Reset:
        """Start an episode."""
        answer = self._environment.reset(seed=seed)
        return await answer if inspect.isawaitable(answer) else answer

    async def step(self, action: str, /) -> Step:
        """Answer an action."""
        answer = self._environment.step(action)
        return await answer if inspect.isawaitable(answer) else answer

    async def close(self) -> None:
        """Close it, where it can be closed."""
        await close_environment(self._environment)
