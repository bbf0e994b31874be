"""The first process of a sandbox: starts programs, watches them, and leaves nothing of them behind.

It never sees what a program is given or what it answers: those go by file descriptors from the
caller to the program. So a program that searches the memory it was forked from finds nothing of
other samples. Orders and reports are small JSON messages on one socket.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from roll_rewards.sandbox.inside import kernel, landlock, program, walls
from roll_rewards.sandbox.inside.doors import FIRST, LAST, open_doors
from roll_rewards.sandbox.inside.processes import Watched, children, kill_all
from roll_rewards.sandbox.inside.rights import Ground, Rights, bar, give_up, reset_signals
from roll_rewards.sandbox.inside.scratch import empty, overfull

_ORDER_BYTES = 4096
_HANDLES = 8
_FIRST_LOOK_S, _LOOK_S = 0.01, 0.02
_IDLE_S = 1.0
_READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)


def main() -> None:
    """Serve the socket whose number is the first argument; the second is JSON, see `cell.Cell`."""
    control, settings = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    for entrance in settings["cgroup"]:
        with contextlib.suppress(OSError), open(entrance, "w") as file:
            file.write("0")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        warden = _Warden(control, settings)
    except OSError as error:
        control.send(json.dumps({"refused": str(error)}).encode())
        raise SystemExit(1) from error
    control.send(json.dumps({"ready": os.getpid()}).encode())
    warden.run()


class _Warden:
    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self._control = control
        self._walls: str = settings["walls"]
        visible = tuple(settings["visible"])
        if self._walls == "namespaces":
            walls.enter(visible)
            self._ground = Ground(walled=True, scratch=walls.SCRATCH, company=2)
        else:
            self._ground = Ground(
                walled=self._walls == "outer",
                company=1 if self._walls == "outer" else 0,
                scratch=settings["scratch"],
                user=settings["user"],
                rules=_rules(self._walls, visible, settings["scratch"]),
            )
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self._scratch_mb: float = walls.DEFAULT_SCRATCH_MB
        self._alone = os.getpid() == 1
        sys.path.extend(settings["site"])
        if self._ground.user is not None:
            open_doors(visible)
        for name in settings["preload"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._parent = os.getppid()
        self._awake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._awake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        program.prepare(self._ground.scratch)
        bar(self._ground)
        gc.collect()
        gc.freeze()

    def run(self) -> None:
        """Obey until the caller closes its end or disappears."""
        try:
            while os.getppid() == self._parent:
                if not select.select([self._control], [], [], _IDLE_S)[0]:
                    continue
                message, handles, _, _ = socket.recv_fds(self._control, _ORDER_BYTES, _HANDLES)
                if not message:
                    return
                order = json.loads(message)
                if "run" in order:
                    self._control.send(json.dumps(self._run(order, handles)).encode())
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            self._clear()
            if self._walls == "rlimits":
                with contextlib.suppress(OSError):
                    os.rmdir(self._ground.scratch)

    def _run(self, order: dict[str, float], handles: list[int]) -> dict[str, object]:
        """One program from its start until nothing of it is left."""
        if self._walls == "namespaces" and order["scratch_mb"] != self._scratch_mb:
            walls.size_scratch(int(order["scratch_mb"]))
            self._scratch_mb = order["scratch_mb"]
        started, used = time.monotonic(), _cpu_s()
        child = os.fork()
        if child == 0:
            self._become_program(order, handles)
        try:
            status, reason, peak_mb = self._watch(child, order, handles, started)
            seconds = time.monotonic() - started
            self._clear()
        finally:
            for handle in handles:
                os.close(handle)
        return {
            "done": order["run"],
            "status": status,
            "reason": reason,
            "seconds": seconds,
            "cpu_s": _cpu_s() - used,
            "peak_mb": peak_mb,
        }

    def _become_program(self, order: dict[str, float], handles: list[int]) -> NoReturn:
        try:
            reset_signals()
            os.setsid()
            channel = _place(handles)
            rights = Rights(
                cpu_s=int(order["cpu_s"]),
                memory_mb=int(order["memory_mb"]),
                processes=int(order["processes"]),
                file_mb=int(order["scratch_mb"]),
            )
            give_up(rights, self._ground)
            program.begin(channel)
        finally:
            # Never back into the warden's own loop, whatever happened.
            os._exit(127)

    def _watch(
        self, child: int, order: dict[str, float], handles: list[int], started: float
    ) -> tuple[int | None, str, float]:
        """Wait for the program's end or for a limit; how it ended, why, and the memory seen in use."""
        watched = Watched(alone=self._alone, first=child)
        pause, peak = _FIRST_LOOK_S, 0.0
        while True:
            left = started + order["wall_s"] - time.monotonic()
            sources: list[Any] = [self._control, self._awake]
            readable, _, _ = select.select(sources, [], [], max(0.0, min(left, pause)))
            if self._awake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._awake, 4096)
            ended, status = _poll(child)
            if ended:
                return status, "exited", peak
            if self._control in readable:
                # Orders do not come while a program runs, except to stop it.
                stop = self._control.recv(_ORDER_BYTES)
                return None, "stopped" if stop else "abandoned", peak
            if time.monotonic() - started >= order["wall_s"]:
                return None, "wall", peak
            used = watched.memory_mb(enough=order["memory_mb"])
            peak = max(peak, used)
            if used > order["memory_mb"]:
                return None, "memory", peak
            # Standard output and error are files that only grow.
            if any(os.fstat(handle).st_size > order["output_bytes"] for handle in handles[1:3]):
                return None, "output", peak
            if self._walls != "namespaces" and overfull(self._ground.scratch, size_mb=order["scratch_mb"]):
                return None, "disk", peak
            pause = _LOOK_S

    def _clear(self) -> None:
        """Kill what is left and empty the scratch directory."""
        kill_all(alone=self._alone, user=self._ground.user)
        while children(alone=self._alone):
            kill_all(alone=self._alone, user=self._ground.user)
        empty(self._ground.scratch)


def _rules(walls_: str, visible: tuple[str, ...], scratch: str) -> int | None:
    """Which files programs may use, where no namespace says that. None where the kernel cannot tell."""
    if walls_ == "outer" or not landlock.version():
        return None
    rules = landlock.ruleset(readable=(*visible, *_READABLE), writable=(scratch, "/dev/null"))
    # Programs close what lies between; see `_place`.
    return os.dup2(rules, LAST)


def _poll(child: int) -> tuple[bool, int | None]:
    """Whether the program's first process ended, and its exit code or minus its signal. Reaps others."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True, None
        if process == 0:
            return False, None
        if process == child:
            return True, os.waitstatus_to_exitcode(status)


def _place(handles: list[int]) -> program.Channel:
    """Move the caller's file descriptors to their places and close all others."""
    raised = [os.dup2(handle, 100 + index, inheritable=False) for index, handle in enumerate(handles)]
    for number, handle in enumerate(raised[:3]):
        os.dup2(handle, number, inheritable=True)
    os.closerange(3, FIRST)
    os.closerange(LAST + 1, 100)
    for handle in raised[:3]:
        os.close(handle)
    os.closerange(100 + len(raised), 1024)
    return program.Channel(job=raised[3], result=raised[4], peer=raised[5] if len(raised) > 5 else None)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
