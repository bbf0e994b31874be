"""Any grader as an HTTP service, for `remote` graders elsewhere. Started by `roll-grade serve`."""

import asyncio
import hmac
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from roll_rewards.deadlines import GradeItem, grade_with_deadline
from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.remote.transport import MAX_REPLY_BYTES
from roll_rewards.scores import Score, failed

_IDLE_S = 30.0


class GradingService:
    """Answers the requests of `remote` graders in mode `sync` with one grader.

    All requests are graded on one event loop, so that a grader which puts requests together (`reward_model`)
    sees them together. `GET /health` answers 200.

    Example:

        with GradingService(grader, port=8000, deadline_s=60) as service:
            print(service.url)
    """

    def __init__(
        self,
        grader: Grader,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        deadline_s: float = 60.0,
        key: str | None = None,
    ) -> None:
        """A service; it listens from `__enter__` on.

        Args:
            grader: What grades.
            host: Address to listen on.
            port: Port; 0 takes a free one.
            deadline_s: Seconds for each response, above 0.
            key: What a request must send as `Authorization: Bearer`; None lets everyone in.

        Raises:
            RewardError: The address cannot be listened on.
        """
        self._grader, self._deadline_s, self._key = grader, deadline_s, key
        self._loop = asyncio.new_event_loop()
        try:
            self._server = ThreadingHTTPServer((host, port), self._handler())
        except OSError as error:
            self._loop.close()
            raise RewardError(f"cannot listen on {host}:{port}: {error}") from error
        self._server.daemon_threads = True
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="grading", daemon=True),
            threading.Thread(target=self._server.serve_forever, name="listening", daemon=True),
        ]

    @property
    def url(self) -> str:
        """Where `remote` graders send."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(10)
        if not self._loop.is_running():
            self._loop.close()

    def wait(self) -> None:
        """Serves until the process is interrupted."""
        self._threads[1].join()

    def answer(self, body: bytes) -> tuple[int, dict[str, object]]:
        """Status and answer of one request.

        Args:
            body: JSON with `response`, `reference` and `columns`.
        """
        try:
            row = json.loads(body)
            columns = row.get("columns") or {}
            item = GradeItem(response=row["response"], reference=row.get("reference"), columns=columns)
            if not isinstance(item.response, str) or not isinstance(columns, Mapping):
                raise TypeError("'response' must be a text and 'columns' an object")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RewardError) as error:
            return 400, {"error": f"expected response, reference and columns as JSON: {error}"}
        score = asyncio.run_coroutine_threadsafe(self._grade(item), self._loop).result()
        if score.failure is not None:
            return 200, {"failure": {"kind": score.failure.kind, "message": score.failure.message}}
        return 200, {
            "score": score.value,
            "parts": dict(score.parts),
            "parsed": score.parsed,
            "timed_out": score.timed_out,
        }

    async def _grade(self, item: GradeItem) -> Score:
        try:
            return await grade_with_deadline(
                self._grader, item.response, item.reference, deadline_s=self._deadline_s, **item.columns
            )
        except TypeError as error:
            # A column may have a name that no Python argument can have.
            return failed("error", f"the row cannot be graded: {error}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _IDLE_S

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: scores are logged by whoever asked for them."""

            def do_GET(self) -> None:
                self._send(
                    *((200, {"status": "ok"}) if self.path == "/health" else (404, {"error": "POST here"}))
                )

            def do_POST(self) -> None:
                if not service._admits(self.headers.get("Authorization", "")):
                    self._send(401, {"error": "a key is expected as Authorization: Bearer"})
                    return
                length = self.headers.get("Content-Length", "")
                if not length.isdigit() or int(length) > MAX_REPLY_BYTES:
                    self._send(413, {"error": f"a Content-Length of at most {MAX_REPLY_BYTES} is expected"})
                    return
                self._send(*service.answer(self.rfile.read(int(length))))

            def _send(self, status: int, answer: Mapping[str, object]) -> None:
                data = json.dumps(answer).encode("ascii")
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    # Whoever asked is gone.
                    self.close_connection = True

        return Handler

    def _admits(self, header: str) -> bool:
        expected = "" if self._key is None else f"Bearer {self._key}"
        return self._key is None or hmac.compare_digest(header.encode(), expected.encode())
