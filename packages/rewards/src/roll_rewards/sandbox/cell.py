"""One sandbox, seen from outside: a warm process behind walls that runs one program after another."""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

from roll_rewards.sandbox.cgroup import ProcessGroup
from roll_rewards.sandbox.errors import CellBrokenError, CellRefusedError
from roll_rewards.sandbox.inside.scratch import empty
from roll_rewards.sandbox.launching import (
    outer_command,
    site_directories,
    visible_directories,
    warden_command,
)
from roll_rewards.sandbox.records import Isolation, Job, Outcome

_START_S = 60.0
# What a run may take beyond its wall limit, on a machine that is busy with other things.
_GRACE_S = 30.0
_END_S = 10.0
_FIRST_USER, _USERS = 61000, 3000
_JOB_SLACK_BYTES = 1 << 16


class Cell:
    """A sandbox. One program at a time."""

    def __init__(self, isolation: Isolation, *, preload: Sequence[str], number: int) -> None:
        """Start it; `ready` says whether it came up.

        Args:
            isolation: How it is separated from the host.
            preload: Modules that programs find imported already.
            number: Different for every sandbox of this process that lives at the same time.

        Raises:
            CellRefusedError: The isolation needs a tool that is not installed, or no user id is left.
        """
        self._isolation = isolation
        prefix = outer_command(isolation)
        user, claim = None, None
        if isolation == "rlimits" and os.geteuid() == 0:
            user, claim = _claim_user()
        self._group = ProcessGroup.create(number)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._scratch = ""
        if isolation == "rlimits":
            self._scratch = tempfile.mkdtemp(prefix=f"roll-sandbox-{os.getpid()}-")
            if user is not None:
                os.chown(self._scratch, user, user)
        settings: dict[str, Any] = {
            "walls": {"namespaces": "namespaces", "rlimits": "rlimits"}.get(isolation, "outer"),
            "visible": visible_directories(),
            "site": site_directories(),
            "preload": list(preload),
            "scratch": self._scratch or "/box",
            "user": user,
            "cgroup": self._group.entrances if self._group else [],
        }
        with theirs:
            self._process = subprocess.Popen(
                [*prefix, *warden_command(), str(theirs.fileno()), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
                cwd="/",
            )
        self._runs = 0
        self._is_ready = False
        self._finalizer = weakref.finalize(
            self, _end, self._control, self._process, self._scratch, self._group, claim
        )

    @property
    def process_id(self) -> int:
        """The process of the host that stands for the sandbox; with it everything inside ends."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until programs can be run.

        Raises:
            CellRefusedError: This isolation cannot be had here.
        """
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(_START_S):
                answer = await self._receive()
        except TimeoutError as error:
            raise CellRefusedError(f"a sandbox did not start within {_START_S:g} s") from error
        except CellBrokenError as error:
            raise CellRefusedError(str(error)) from error
        if "ready" not in answer:
            raise CellRefusedError(str(answer.get("refused", answer)))
        self._is_ready = True

    async def run(self, job: Job, *, peer: int | None = None) -> Outcome:
        """Run one program to its end.

        Args:
            job: The program.
            peer: File descriptor of a socket that the program gets besides, if any.

        Raises:
            CellBrokenError: The sandbox ended or did not answer; close it.
        """
        self._runs += 1
        killed = 0
        if self._group:
            limits = job.limits
            self._group.limit(
                processes=limits.processes + _HELPERS,
                memory_mb=limits.memory_mb + limits.scratch_mb + _HELPERS_MB,
            )
            killed = self._group.memory_kills
        with contextlib.ExitStack() as handles:
            inputs = [_sealed(job.stdin, "stdin"), _sealed(_serialised(job), "job")]
            outputs = [_file(name) for name in ("stdout", "stderr", "result")]
            for handle in (*inputs, *outputs):
                handles.callback(os.close, handle)
            stdin, spec = inputs
            stdout, stderr, result = outputs
            sent = [stdin, stdout, stderr, spec, result, *([] if peer is None else [peer])]
            self._send({"run": self._runs, **job.limits.order}, sent)
            try:
                async with asyncio.timeout(job.limits.wall_s + _GRACE_S):
                    answer = await self._receive()
            except TimeoutError as error:
                raise CellBrokenError("the sandbox did not end a program in time") from error
            if answer.get("done") != self._runs:
                raise CellBrokenError(f"the sandbox gave another answer: {str(answer)[:200]}")
            if self._group and answer["reason"] == "exited" and self._group.memory_kills > killed:
                answer["reason"] = "memory"
            return self._outcome(job, answer, outputs)

    def stop(self) -> None:
        """End the program that runs now; `run` then says `stopped`."""
        with contextlib.suppress(OSError):
            self._control.send(b'{"stop": 1}')

    def close(self) -> None:
        """End it with everything inside, wait for that and remove its scratch space."""
        self._finalizer()

    def _outcome(self, job: Job, answer: dict[str, Any], outputs: list[int]) -> Outcome:
        limit = job.limits.output_kb * 1024
        flooded = any(os.fstat(handle).st_size > limit for handle in outputs[:2])
        stdout, stderr, result = (os.pread(handle, limit, 0) for handle in outputs)
        if job.mode == "compile":
            result = os.pread(outputs[2], job.limits.scratch_mb * 2**20, 0)
        elif os.fstat(outputs[2]).st_size > limit:
            result = b""
        return Outcome(
            reason="output" if flooded and answer["reason"] == "exited" else answer["reason"],
            code=answer["status"],
            stdout=stdout,
            stderr=stderr,
            result=result,
            seconds=float(answer["seconds"]),
            cpu_s=float(answer["cpu_s"]),
            peak_mb=float(answer["peak_mb"]),
            isolation=self._isolation,
        )

    def _send(self, order: dict[str, Any], handles: list[int]) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], handles)
        except OSError as error:
            raise CellBrokenError("the sandbox ended") from error

    async def _receive(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        while True:
            arrived: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._control, _wake, arrived)
            try:
                await arrived
            finally:
                loop.remove_reader(self._control)
            with contextlib.suppress(BlockingIOError):
                try:
                    message = self._control.recv(65536)
                except OSError:
                    message = b""
                if not message:
                    raise CellBrokenError("the sandbox ended")
                answer: dict[str, Any] = json.loads(message)
                return answer


# Processes of a sandbox that are not the program's: guards, the warden, and forks of it in the making.
_HELPERS = 6

# Memory of theirs, of modules that are there before the program, and of what a program prints. The warden
# ends a program at its own limit; this one is for what grows too fast to be seen.
_HELPERS_MB = 512


def _claim_user() -> tuple[int, socket.socket]:
    """A user id that no other sandbox of this machine has, and what holds the claim to it.

    A name in the kernel's abstract space goes away with its socket, also when this process is killed.

    Raises:
        CellRefusedError: All are taken.
    """
    for user in range(_FIRST_USER, _FIRST_USER + _USERS):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0roll-sandbox-user-{user}")
        except OSError:
            claim.close()
        else:
            return user, claim
    raise CellRefusedError(f"all {_USERS} user ids for sandboxes are taken")


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _serialised(job: Job) -> bytes:
    header = {"mode": job.mode, "files": [[name, len(data)] for name, data in job.files.items()]}
    return json.dumps({**job.options, **header}).encode("ascii") + b"\n" + b"".join(job.files.values())


def _file(name: str) -> int:
    """An anonymous file in memory that is only appended to."""
    handle = os.memfd_create(f"sandbox-{name}", os.MFD_CLOEXEC)
    fcntl.fcntl(handle, fcntl.F_SETFL, os.O_APPEND)
    return handle


def _sealed(data: bytes, name: str) -> int:
    """An anonymous file in memory that cannot be changed any more."""
    handle = os.memfd_create(f"sandbox-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _end(
    control: socket.socket,
    process: "subprocess.Popen[bytes]",
    scratch: str,
    group: ProcessGroup | None,
    claim: socket.socket | None,
) -> None:
    control.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if scratch and os.path.isdir(scratch):
        # The warden does this, unless it was killed.
        empty(scratch)
        os.rmdir(scratch)
    if group is not None:
        group.remove()
    if claim is not None:
        claim.close()
