"""The process that the workers of a pool are forked from: warm, single-threaded, without secrets of its own.

`WorkerPool` starts it as a fresh interpreter, so that no thread and no lock of the caller is ever
forked. It imports what the calls need once; a new worker then costs a fork. It adopts whatever
its workers leave behind and kills it. It ends, with everything below it, when its pool closes the
control socket or disappears.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from roll_rewards.workers.loop import serve_calls

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.5
_MESSAGE_BYTES = 65536


def main() -> None:
    """Serve the control socket whose number is the first argument; the second names modules, as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for name in json.loads(sys.argv[2]):
            importlib.import_module(name)
    except Exception as error:
        # Boundary to foreign code: importing a module may raise anything.
        with contextlib.suppress(OSError):
            control.send(json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}).encode())
            # Closing with orders unread would lose the message; what is read here is dropped.
            while control.recv(_MESSAGE_BYTES):
                pass
        return
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"ready": os.getpid()}).encode())
    _Nursery(control).run()


class _Nursery:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, int] = {}  # the pool's number of a worker -> its process
        self._parent = os.getppid()
        self._awake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        try:
            while os.getppid() == self._parent and self._step():
                pass
        finally:
            self._workers.clear()
            _kill_descendants(())

    def _step(self) -> bool:
        """Wait for one event; False when the pool is gone."""
        sources: list[Any] = [self._control, self._awake]
        readable, _, _ = select.select(sources, [], [], _TICK_S)
        if self._awake in readable:
            os.read(self._awake, 4096)
        if self._control in readable:
            try:
                message, handles, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
            except ConnectionResetError:
                return False
            if not message:
                return False
            self._obey(json.loads(message), handles)
        self._reap()
        return True

    def _obey(self, order: dict[str, int], handles: Iterable[int]) -> None:
        if "fork" in order:
            for handle in handles:
                self._workers[order["fork"]] = self._fork(handle, order)
        elif order["kill"] in self._workers:
            process = self._workers[order["kill"]]
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(process, signal.SIGKILL)

    def _fork(self, handle: int, order: dict[str, int]) -> int:
        process = os.fork()
        if process == 0:
            self._become_worker(handle, order)
        # Both sides do it, so that a kill that comes at once finds the group.
        with contextlib.suppress(OSError):
            os.setpgid(process, process)
        os.close(handle)
        return process

    def _become_worker(self, handle: int, order: dict[str, int]) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            self._control.close()
            serve_calls(
                handle,
                memory_bytes=order["memory_mb"] * 2**20,
                cpu_s=order["cpu_s"],
                result_bytes=order["result_bytes"],
            )
            code = 0
        finally:
            # Never back into the nursery's own loop, whatever happened.
            os._exit(code)

    def _reap(self) -> None:
        ended = False
        while True:
            try:
                process, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if process == 0:
                break
            ended = True
            for number in [n for n, p in self._workers.items() if p == process]:
                del self._workers[number]
        if ended:
            _kill_descendants(self._workers.values())


def _kill_descendants(spare: Iterable[int]) -> None:
    """Kill every child but some, and what they leave behind, until nothing is left to adopt."""
    kept = set(spare)
    while strays := _children() - kept:
        for process in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in strays:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _children() -> set[int]:
    """Processes whose parent this process is."""
    me, found = os.getpid(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == me:
                    found.add(int(entry.name))
    return found
