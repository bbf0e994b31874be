"""A pool's ends of the sockets to its workers and to the parent they are forked from."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from roll_rewards.workers.calls import Call
from roll_rewards.workers.errors import CallFailed
from roll_rewards.workers.frames import FrameBuffer, unpack_plain
from roll_rewards.workers.settings import WorkerLimits

_READ_BYTES = 1 << 20
_END_S = 10.0
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from roll_rewards.workers.nursery import main; main()"
)


class Nest:
    """The parent of a pool's workers, seen from the pool. See `nursery`."""

    def __init__(self, preload: Sequence[str], limits: WorkerLimits) -> None:
        """Start the process; it answers later.

        Args:
            preload: Modules it imports first.
            limits: What its workers may use.
        """
        self._limits = limits
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        # Processes that compute at the same time must not each take all cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-c",
                    _START,
                    str(theirs.fileno()),
                    json.dumps(list(preload)),
                    json.dumps([entry or os.getcwd() for entry in sys.path]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
            )
        self._numbers = 0
        self._words = ""
        self._finalizer = weakref.finalize(self, _end, self._control, self._process)

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def fork(self) -> "Connection":
        """A new worker; it says `ready` when it can be used."""
        self._numbers += 1
        ours, theirs = socket.socketpair()
        order = {
            "fork": self._numbers,
            "memory_mb": self._limits.memory_mb,
            "cpu_s": self._limits.cpu_s or 0,
            "result_bytes": self._limits.result_bytes,
        }
        with theirs, contextlib.suppress(OSError):
            # A parent that is gone shows as a connection that ends at once.
            socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno()])
        return Connection(ours, self._numbers, self._kill, self._limits.result_bytes)

    def last_words(self) -> str:
        """Why it ended, if it said so."""
        with contextlib.suppress(OSError, ValueError):
            while message := self._control.recv(65536):
                self._words = json.loads(message).get("error", self._words)
        return self._words and f"its modules cannot be imported: {self._words}"

    def close(self) -> None:
        """End it and everything below it, and wait for that."""
        self._finalizer()

    def abandon(self) -> None:
        """End it without waiting."""
        self._process.kill()
        self._finalizer()

    def _kill(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"kill": number}).encode())


class Connection:
    """One worker, seen from the pool."""

    def __init__(self, sock: socket.socket, number: int, kill: Callable[[int], None], limit: int) -> None:
        """Args:
        sock: Connected to the worker.
        number: Names the worker to its parent.
        kill: Kills a worker by its number.
        limit: Largest answer in bytes.
        """
        sock.setblocking(False)
        self.calls: deque[Call] = deque()
        self.ready = False
        self.gone = False
        self._handle = sock.detach()
        self._number = number
        self._kill = kill
        self._frames = FrameBuffer(limit + 4096)
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._finalizer = weakref.finalize(self, os.close, self._handle)

    def attach(self, loop: asyncio.AbstractEventLoop, on_data: Callable[["Connection"], None]) -> None:
        """Have `on_data` called in a loop whenever there is something to receive.

        Args:
            loop: The running loop.
            on_data: Called with this connection.
        """
        self._loop, self._timer = loop, None
        loop.add_reader(self._handle, on_data, self)

    def send(self, call: Call) -> None:
        """Give the worker a call, without waiting."""
        self.calls.append(call)
        self._unsent += call.frame
        self._flush()

    def receive(self) -> list[tuple[str, object, float]]:
        """Answers that have come: kind, value, seconds. Sets `gone` at the end of the connection.

        Raises:
            CallFailed: What came is no answer.
        """
        try:
            data = os.read(self._handle, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.gone = not data
        answers = []
        for body in self._frames.feed(data):
            match unpack_plain(body):
                case (str() as kind, value, float() as seconds):
                    answers.append((kind, value, seconds))
                case other:
                    raise CallFailed(f"a worker's answer has another form: {other!r:.80}")
        return answers

    def disown(self, call: Call) -> None:
        """Keep the place of a call that another worker makes now."""
        self.calls[self.calls.index(call)] = call.disowned_copy()

    def watch(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after some seconds, unless `unwatch` comes first. There is one watch at a time."""
        self.unwatch()
        if self._loop is not None:
            self._timer = self._loop.call_later(max(seconds, 0.0), act)

    def unwatch(self) -> None:
        """Cancel the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def kill(self) -> None:
        """End the worker and forget it."""
        self._kill(self._number)
        self.close()

    def close(self) -> None:
        """Forget the worker."""
        self.unwatch()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._handle)
            self._loop.remove_writer(self._handle)
        self._finalizer()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = os.write(self._handle, self._unsent)
            except BlockingIOError:
                if self._loop is not None:
                    self._loop.add_writer(self._handle, self._flush)
                return
            except OSError:
                # The worker is gone; the reader learns the same and tells the pool.
                self._unsent.clear()
                break
            del self._unsent[:sent]
        if self._loop is not None:
            self._loop.remove_writer(self._handle)


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
