"""One HTTP request that ends in time. Standard library only; redirects and proxies are not followed."""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from roll_rewards.errors import RewardError
from roll_rewards.threads import call_in_thread

MAX_REPLY_BYTES = 16 * 2**20
_CHUNK = 65_536


class RemoteError(RewardError):
    """A service did not answer as it should; the message names it and never holds credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a service answered.

    Example: `Reply(status=200, headers={"content-type": "application/json"}, body=b"{}")`.

    Attributes:
        status: HTTP status.
        headers: By lower-case name.
        body: As it came.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self, where: str) -> object:
        """The body as JSON.

        Raises:
            RemoteError: It is none.
        """
        try:
            value: object = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RemoteError(f"{where} answered no JSON: {self.body[:200]!r}") from error
        return value


async def send(
    method: str,
    url: str,
    *,
    payload: object = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> Reply:
    """The answer to a request.

    Args:
        method: `GET`, `POST` or another.
        url: With `http://` or `https://`.
        payload: Sent as JSON; None sends no body.
        headers: Besides the content type.
        timeout_s: Wall seconds for all of it, above 0.

    Raises:
        RemoteError: The address is none, the service is not there, takes longer, or sends above 16 MiB.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RemoteError(f"an address begins with http:// or https:// and a host, got {url!r:.200}")
    body = None if payload is None else json.dumps(payload, default=str).encode("ascii")
    connection = _connection(parts.scheme, parts.hostname, parts.port, timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = {
        "Accept": "application/json",
        **({"Content-Type": "application/json"} if body else {}),
        **(headers or {}),
    }
    until, opened = time.monotonic() + timeout_s, list[socket.socket]()
    try:
        async with asyncio.timeout(timeout_s):
            return await call_in_thread(
                lambda: _exchange(connection, method, target, body, sent, until, opened),
                name=f"request {parts.hostname}",
            )
    except (OSError, http.client.HTTPException) as error:
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise RemoteError(f"{method} {where} failed: {type(error).__name__}: {error}") from error
    finally:
        # Also when the wait was cancelled: the thread's read ends with its socket.
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _connection(scheme: str, host: str, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: Mapping[str, str],
    until: float,
    opened: list[socket.socket],
) -> Reply:
    with contextlib.closing(connection):
        connection.connect()
        opened.append(connection.sock)
        connection.request(method, target, body=body, headers=dict(headers))
        with contextlib.closing(connection.getresponse()) as response:
            return _read(response, until)


def _read(response: http.client.HTTPResponse, until: float) -> Reply:
    chunks, size = [], 0
    while chunk := response.read1(_CHUNK):
        size += len(chunk)
        if size > MAX_REPLY_BYTES:
            raise http.client.HTTPException(f"the answer has more than {MAX_REPLY_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError("timed out while the answer came")
        chunks.append(chunk)
    return Reply(
        status=response.status,
        headers={name.lower(): value for name, value in response.getheaders()},
        body=b"".join(chunks),
    )
