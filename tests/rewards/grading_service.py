"""A small HTTP service on this machine, for graders that ask one."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    """What came: `path`, `headers` by lower-case name, `body` as JSON."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Service:
    """A running service: its address and what it was asked."""

    url: str
    requests: list[Request] = field(default_factory=list)


Answer = Callable[[Request, int], tuple[int, Any] | tuple[int, Any, dict[str, str]]]


@contextmanager
def serve(answer: Answer) -> Iterator[Service]:
    """A service that answers the n-th request (from 0) with status, JSON (or bytes) and headers."""
    service = Service(url="")
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            request = Request(
                method=self.command,
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=json.loads(raw) if raw else None,
            )
            with lock:
                number = len(service.requests)
                service.requests.append(request)
            status, body, *headers = answer(request, number)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            try:
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass

        do_GET = do_POST

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
