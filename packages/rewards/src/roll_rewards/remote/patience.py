"""Repeating a request that may go through later: which answers, how often, after how long."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.remote.transport import RemoteError, Reply

_LATER = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long to wait for a service.

    The n-th wait is `first_s * 2**n`, at most `longest_s`, less a random part of up to half of it; a
    `Retry-After` in seconds takes its place.

    Example: `Patience(attempts=3, first_s=0.1)`.

    Attributes:
        attempts: Requests in all, at least 1.
        first_s: First wait in seconds, at least 0.
        longest_s: Longest wait in seconds, also for `Retry-After`.

    Raises:
        RewardError: A number is out of its range.
    """

    attempts: int = 4
    first_s: float = 0.5
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_s < 0 or self.longest_s < self.first_s:
            raise RewardError(
                "patience needs attempts >= 1 and 0 <= first_s <= longest_s, "
                f"got {self.attempts}, {self.first_s} and {self.longest_s}"
            )

    def wait_s(self, attempt: int, reply: Reply | None, random_part: float) -> float:
        """Seconds to wait after an attempt.

        Args:
            attempt: From 0.
            reply: What came, None after a broken connection.
            random_part: In 0..1.
        """
        asked = reply.headers.get("retry-after", "") if reply is not None else ""
        if asked.replace(".", "", 1).isdigit():
            return min(float(asked), self.longest_s)
        return float(min(self.first_s * 2**attempt, self.longest_s) * (1 - random_part / 2))


async def send_patiently(
    request: Callable[[], Awaitable[Reply]],
    patience: Patience,
    where: str,
    *,
    sleep: Sleep = asyncio.sleep,
    draws: random.Random | None = None,
) -> Reply:
    """The first answer of a request with a status below 300.

    Repeated are broken connections and the statuses 408, 409, 425, 429, 500, 502, 503, 504 and 529.

    Args:
        request: Sends it once.
        patience: How often.
        where: Names the service in errors.
        sleep: Waits; a virtual clock in tests.
        draws: Source of the random part of waits.

    Raises:
        RemoteError: The service refused, or failed as often as was tried.
    """
    draws = draws or random.Random()
    last = ""
    for attempt in range(patience.attempts):
        reply: Reply | None = None
        try:
            reply = await request()
        except RemoteError as error:
            last = str(error)
        else:
            if reply.status < 300:
                return reply
            last = f"{where} answered {reply.status}: {reply.body[:200].decode(errors='replace')}"
            if reply.status not in _LATER:
                raise RemoteError(last)
        if attempt + 1 < patience.attempts:
            await sleep(patience.wait_s(attempt, reply, draws.random()))
    raise RemoteError(f"{last} (after {patience.attempts} attempts)")


def authorization(
    variable: str | None, *, header: str = "Authorization", scheme: str = "Bearer"
) -> dict[str, str]:
    """The header with a secret from the environment; empty without a variable.

    Args:
        variable: Name of the environment variable that holds the secret.
        header: Name of the header.
        scheme: Word in front of the secret; empty for none.

    Raises:
        RewardError: The variable is not set or holds no printable text.
    """
    if variable is None:
        return {}
    secret = os.environ.get(variable, "").strip()
    if not secret or not secret.isprintable():
        raise RewardError(
            f"the environment variable {variable} must hold the service's key; it holds nothing usable"
        )
    return {header: f"{scheme} {secret}".strip()}
