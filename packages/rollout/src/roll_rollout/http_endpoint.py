"""An HTTP server that generates: posts and event streams, with retries, back-off and errors that name it.

Needs the extra `http`. Called by the engines that stand before a server.
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from roll_rollout.errors import EngineError, EngineUnavailable

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_SHOWN = 300
"""Characters of a server's message that an error quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a request is sent again, for example `RetryPolicy(attempts=3, deadline_s=60.0)`.

    It is after errors of the connection, and the statuses 408, 425, 429, 500, 502, 503, 504 and 529. The wait
    doubles from attempt to attempt, is shortened by up to a half at random, and is never shorter than the
    server's `Retry-After`.

    Attributes:
        attempts: Most times that a request is sent, at least 1.
        first_wait_s: Seconds before the second attempt.
        longest_wait_s: Most seconds between two attempts, whatever the server asks for.
        idle_s: Seconds without a byte after which an attempt has failed.
        deadline_s: Seconds for all attempts together.
    """

    attempts: int = 6
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    idle_s: float = 120.0
    deadline_s: float = 900.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise EngineError(f"RetryPolicy.attempts: got {self.attempts}, allowed is 1 or more")
        for name in ("first_wait_s", "longest_wait_s", "idle_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise EngineError(f"RetryPolicy.{name}: got {getattr(self, name)}, allowed is more than 0")


class Unanswered(Exception):
    """An attempt failed in a way that another one may not.

    Args:
        reason: What happened.
        wait_s: Seconds that the server asks to wait.
    """

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Refused(EngineError):
    """The server understood a request and will not serve it.

    Attributes:
        status: HTTP status.
        text: What the server said.
    """

    def __init__(self, message: str, status: int, text: str) -> None:
        super().__init__(message)
        self.status = status
        self.text = text

    def __reduce__(self) -> tuple[type["Refused"], tuple[str, int, str]]:
        return type(self), (str(self), self.status, self.text)


class HttpEndpoint:
    """A server at an address.

    Args:
        address: Such as "http://localhost:8000/v1"; paths are appended.
        headers: Sent with every request.
        retry: When a request is sent again.
        most_connections: Requests that are sent at once; more wait.
        sleep: Waits for a number of seconds; a test passes its own.
    """

    def __init__(
        self,
        address: str,
        *,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy,
        most_connections: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not address.startswith(("http://", "https://")):
            raise EngineError(f"endpoint: address is {address!r}, allowed is http://... or https://...")
        self.address = address.rstrip("/")
        self.retries = 0
        self._retry = retry
        self._sleep = sleep
        self._client = httpx.AsyncClient(
            headers=dict(headers or {}),
            timeout=httpx.Timeout(retry.idle_s, pool=None),
            limits=httpx.Limits(max_connections=most_connections, max_keepalive_connections=most_connections),
        )

    async def get(self, path: str) -> str:
        """Returns the text at a path, after one attempt.

        Raises:
            EngineUnavailable: There is no answer, or not a good one.
        """
        try:
            response = await self._client.get(self.address + path, timeout=min(10.0, self._retry.idle_s))
            self._check(response, response.text)
        except (Unanswered, httpx.HTTPError) as error:
            raise EngineUnavailable(f"endpoint {self.address}{path}: {_named(error)}") from error
        return response.text

    async def post(self, path: str, body: Mapping[str, Any], *, where: str) -> Any:
        """Returns the JSON that answers a post, retried as the policy says; None without a body.

        Raises:
            Refused: The server will not serve it.
            EngineUnavailable: No attempt was answered.
        """

        async def attempt() -> Any:
            response = await self._client.post(self.address + path, json=dict(body))
            self._check(response, response.text)
            try:
                return response.json()
            except ValueError:
                return None

        return await self.retried(attempt, path=path, where=where, jitter=random.Random(where))

    async def retried(
        self, attempt: Callable[[], Awaitable[Any]], *, path: str, where: str, jitter: random.Random
    ) -> Any:
        """Returns what an attempt returns, the first that is answered.

        Args:
            attempt: Raises `Unanswered` or an error of httpx if it is worth another.
            path: Where it goes, for messages.
            where: Whose it is, for messages.
            jitter: Shortens the waits.

        Raises:
            EngineUnavailable: None was answered; names the address and the last reason.
        """
        reason = "none was answered"
        try:
            async with asyncio.timeout(self._retry.deadline_s):
                for number in range(1, self._retry.attempts + 1):
                    try:
                        return await attempt()
                    except (Unanswered, httpx.HTTPError) as error:
                        reason = f"{number} attempts failed, the last with {_named(error)}"
                        cause = error
                    if number < self._retry.attempts:
                        self.retries += 1
                        await self._sleep(self._wait_s(number, cause, jitter))
        except TimeoutError as error:
            late = f"not done within {self._retry.deadline_s} s ({reason})"
            raise EngineUnavailable(f"{where}: endpoint {self.address}{path}: {late}") from error
        raise EngineUnavailable(f"{where}: endpoint {self.address}{path}: {reason}")

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yields the JSON of every server-sent event that answers a post, in one attempt.

        Raises:
            Unanswered: The server is busy, or the stream broke off.
            Refused: The server will not serve it.
        """
        async with self._client.stream("POST", self.address + path, json=dict(body)) as response:
            if response.status_code != 200:
                self._check(response, (await response.aread()).decode(errors="replace"))
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                try:
                    yield json.loads(data)
                except ValueError as error:
                    raise Unanswered(f"a broken event: {data[:_SHOWN]!r}") from error

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    def _check(self, response: httpx.Response, text: str) -> None:
        status, shown = response.status_code, text.strip()[:_SHOWN]
        if status in _AGAIN:
            raise Unanswered(f"status {status}: {shown!r}", _seconds(response.headers.get("retry-after")))
        if status >= 400:
            where = f"endpoint {response.request.url}"
            raise Refused(f"{where}: refused with status {status}: {shown!r}", status, text)

    def _wait_s(self, number: int, cause: Exception, jitter: random.Random) -> float:
        wait: float = self._retry.first_wait_s * 2 ** (number - 1) * (1.0 - 0.5 * jitter.random())
        if isinstance(cause, Unanswered):
            wait = max(wait, cause.wait_s)
        return min(wait, self._retry.longest_wait_s)


def _seconds(header: str | None) -> float:
    """Returns the seconds of a Retry-After header; 0 for a date or none."""
    try:
        return max(0.0, float(header or 0.0))
    except ValueError:
        return 0.0


def _named(error: Exception) -> str:
    text = str(error)
    return text if isinstance(error, Unanswered) else f"{type(error).__name__}: {text}"
