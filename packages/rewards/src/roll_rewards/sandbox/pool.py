"""Several sandboxes, kept warm, for one program after another."""

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Literal, Self, get_args

from roll_rewards.errors import RewardError
from roll_rewards.sandbox.cell import Cell
from roll_rewards.sandbox.errors import CellBrokenError, CellRefusedError, SandboxError
from roll_rewards.sandbox.records import Isolation, Job, Outcome

_TRIES = 2
_AUTOMATIC: tuple[Isolation, ...] = ("namespaces", "bubblewrap", "rlimits")
_numbers = itertools.count()


class SandboxPool:
    """Runs untrusted programs, several at a time, each alone in a sandbox.

    A sandbox is a small warm interpreter behind walls; a program is a fork of it that gives up every
    right first. When the program ends, or exceeds a limit, everything that it started is killed and its
    files are gone. A sandbox that breaks is replaced, and its program tried once more in another.

    Walls, strongest first: `namespaces` (own users, processes, files, network, IPC; the program is
    another user and sees the system's libraries read-only and one empty directory), `bubblewrap`
    (the same by that tool), `rlimits` (what needs no namespaces: another user if this process is root,
    limits, Landlock, a filter of system calls; no internet sockets at all). `auto` takes the first that
    the machine allows; every `Outcome` says which it was.

    Processes start at the first job and end with `close()`, with the last reference, or with this
    process. One event loop at a time uses a pool.

    Example:

        async with SandboxPool(sandboxes=2) as pool:
            outcome = await pool.run(Job(mode="script", files={"main.py": b"print(6 * 7)"}))
    """

    def __init__(
        self,
        *,
        sandboxes: int = 2,
        isolation: Literal["auto"] | Isolation = "auto",
        preload: Sequence[str] = (),
        judge_preload: Sequence[str] = (),
    ) -> None:
        """A pool; nothing is started yet.

        Args:
            sandboxes: Programs at the same time, at least 1.
            isolation: The walls; `auto` takes the strongest that the machine allows.
            preload: Modules that programs find imported already, which makes importing them fast.
            judge_preload: The same for tests that run beside a program.

        Raises:
            RewardError: An argument is out of its range.
        """
        if sandboxes < 1:
            raise RewardError(f"SandboxPool.sandboxes must be at least 1, got {sandboxes}")
        if isolation not in ("auto", *get_args(Isolation)):
            allowed = ", ".join(("auto", *get_args(Isolation)))
            raise RewardError(f"SandboxPool.isolation must be one of {allowed}, got {isolation!r}")
        self._size = sandboxes
        self._candidates = list(_AUTOMATIC) if isolation == "auto" else [isolation]
        self._preload = tuple(preload)
        self._judge_preload = tuple(judge_preload)
        self._free: list[_Slot] = []
        self._slots = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._broken = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def broken(self) -> int:
        """Sandboxes that broke and were replaced so far."""
        return self._broken

    async def run(self, job: Job) -> Outcome:
        """How one program ended.

        Args:
            job: The program.

        Raises:
            SandboxError: No sandbox can be had, or two broke under this program.
        """
        async with self._slot() as slot:
            for attempt in itertools.count(1):
                try:
                    return await self._run_once(slot, job)
                except CellBrokenError as error:
                    await self._mourn(slot, attempt, error)
            raise AssertionError("unreachable")

    async def run_judged(self, program: Job, judge: Job) -> tuple[Outcome, Outcome]:
        """A program and its judge, each in its own sandbox, connected by a socket.

        The program is stopped when the judge is done.

        Args:
            program: A job of mode `serve`.
            judge: A job of mode `judge`.

        Returns:
            The outcomes of the program and of the judge.

        Raises:
            SandboxError: No sandbox can be had, or two broke under this program.
        """
        async with self._slot() as slot:
            for attempt in itertools.count(1):
                try:
                    return await self._run_pair(slot, program, judge)
                except CellBrokenError as error:
                    await self._mourn(slot, attempt, error)
            raise AssertionError("unreachable")

    async def close(self) -> None:
        """End all sandboxes that are not running a program. The pool may be used again."""
        slots, self._free = self._free, []
        self._slots -= len(slots)
        await asyncio.gather(*(asyncio.to_thread(slot.close) for slot in slots))

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator["_Slot"]:
        """A place to run, for as long as it is needed."""
        while not self._free and self._slots >= self._size:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake_next()
                raise
        if self._free:
            slot = self._free.pop()
        else:
            self._slots += 1
            slot = _Slot()
        clean = False
        try:
            yield slot
            clean = True
        finally:
            if not clean:
                # Cancelled in the middle: a program may still run in it.
                asyncio.get_running_loop().run_in_executor(None, slot.close)
                slot = _Slot()
            self._free.append(slot)
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            # Those of an event loop that has ended wait no more.
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return

    async def _mourn(self, slot: "_Slot", attempt: int, error: CellBrokenError) -> None:
        """Put away a broken sandbox.

        Raises:
            SandboxError: It was not the first under this program.
        """
        self._broken += 1
        await asyncio.to_thread(slot.close)
        if attempt == _TRIES:
            raise SandboxError(f"{_TRIES} sandboxes broke under one program: {error}") from error

    async def _run_once(self, slot: "_Slot", job: Job) -> Outcome:
        return await (await self._cell(slot, "program")).run(job)

    async def _run_pair(self, slot: "_Slot", program: Job, judge: Job) -> tuple[Outcome, Outcome]:
        worker, judging = await self._cell(slot, "program"), await self._cell(slot, "judge")
        ours, theirs = socket.socketpair()
        running = asyncio.ensure_future(worker.run(program, peer=ours.fileno()))
        try:
            # The sandboxes have their own copies from here on; the end of one shows to the other.
            await asyncio.sleep(0)
            ours.close()
            verdict = asyncio.ensure_future(judging.run(judge, peer=theirs.fileno()))
            await asyncio.sleep(0)
            theirs.close()
            judged = await verdict
            worker.stop()
            return await running, judged
        finally:
            ours.close()
            theirs.close()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, CellBrokenError):
                await running

    async def _cell(self, slot: "_Slot", kind: Literal["program", "judge"]) -> Cell:
        """A sandbox of this slot that is ready, with the strongest walls that the machine allows."""
        while True:
            isolation = self._candidates[0]
            try:
                if kind not in slot.cells:
                    preload = self._preload if kind == "program" else self._judge_preload
                    slot.cells[kind] = Cell(isolation, preload=preload, number=next(_numbers))
                cell = slot.cells[kind]
                await cell.ready()
            except CellRefusedError as error:
                slot.drop(kind)
                if self._candidates[0] == isolation:
                    if len(self._candidates) == 1:
                        raise SandboxError(f"isolation {isolation!r} cannot be had here: {error}") from error
                    self._candidates.pop(0)
            else:
                return cell


class _Slot:
    """Room for one program, and for its judge."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}

    def drop(self, kind: str) -> None:
        if kind in self.cells:
            self.cells.pop(kind).close()

    def close(self) -> None:
        for kind in list(self.cells):
            self.drop(kind)
