"""What went wrong first: failures of roles carry their time, and a report is made of the earliest one.

When one process of a run dies, others fail in its wake and are often heard of first. `first_cause` sorts
them.
"""

import time
from collections.abc import Iterator

from roll_launch.errors import RollLaunchError


class RoleError(RollLaunchError):
    """A call on a role raised: the role and method, and the cause in the words of the worker.

    Args:
        role: Such as "trainer" or "actor-0".
        method: The call that failed.
        cause: One line.
        detail: The worker's traceback, or "".
        when: Seconds since the epoch.
    """

    def __init__(
        self, role: str, method: str, cause: str, detail: str = "", when: float | None = None
    ) -> None:
        super().__init__(role, method, cause, detail, when)
        self.role = role
        self.method = method
        self.cause = cause
        self.detail = detail
        self.when = time.time() if when is None else when

    def __str__(self) -> str:
        return f"{self.role} failed in {self.method}: {self.cause}"


class RoleDied(RoleError):
    """The process of a role is gone."""

    def __str__(self) -> str:
        return f"{self.role} died during {self.method}: {self.cause}"


def first_cause(error: BaseException) -> BaseException:
    """The failure that came first among all that an exception (group) holds.

    A death goes before an error at about the same time: errors of others are its consequence. Exceptions that
    carry no time are consequences unless they are all there is.
    """
    timed = [leaf for leaf in _leaves(error) if isinstance(leaf, RoleError)]
    if timed:
        return min(timed, key=lambda leaf: (not isinstance(leaf, RoleDied), leaf.when))
    return next(_leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
        return
    yield error
    cause = error.__cause__
    if cause is not None:
        yield from _leaves(cause)
