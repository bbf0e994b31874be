"""Tests run in sandboxes of this machine, and judged from outside of them. Called by the `code` grader."""

import ast
import dataclasses
import json
import os
import signal
from dataclasses import dataclass, field
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.graders.code.cases import PROGRAM_NAMES, Case, Suite, names_classes
from roll_rewards.graders.code.comparison import same_output, same_value
from roll_rewards.graders.code.verdicts import CompileError, Verdict
from roll_rewards.sandbox.inside import wire
from roll_rewards.sandbox.pool import SandboxPool
from roll_rewards.sandbox.records import Isolation, Job, Limits, Outcome

_COMPILER_LIMITS = Limits(memory_mb=2048, processes=64, scratch_mb=256)
_pools: dict[tuple[object, ...], SandboxPool] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A program that is ready to run.

    Attributes:
        files: What it consists of.
        argv: Its command; empty for Python.
    """

    files: dict[str, bytes]
    argv: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunner:
    """Runs tests in the sandbox pool of this process.

    Attributes:
        isolation: Which walls.
        sandboxes: Size of the pool.
        language: `python`, `cpp` or `shell`.
        tolerance: See `Code.tolerance`.
        compile_s: See `Code.compile_s`.
    """

    isolation: Literal["auto"] | Isolation
    sandboxes: int
    language: str
    tolerance: float
    compile_s: float

    async def prepare(self, source: bytes) -> Prepared:
        """Compile a program, if its language wants that.

        Args:
            source: Its text.

        Raises:
            CompileError: It does not compile.
            SandboxError: There is no sandbox.
        """
        if self.language == "python":
            return Prepared(files={"main.py": source})
        if self.language == "shell":
            return Prepared(files={"main.sh": source}, argv=["bash", "main.sh"])
        argv = ["g++", "-O2", "-std=c++17", "-pipe", "-o", "main", "main.cpp"]
        job = Job(
            mode="compile",
            files={"main.cpp": source},
            options={"argv": argv, "output": "main"},
            limits=dataclasses.replace(_COMPILER_LIMITS, wall_s=self.compile_s),
        )
        outcome = await self._pool("").run(job)
        if not outcome.succeeded or not outcome.result:
            said = outcome.stderr.decode(errors="replace")[:2000]
            raise CompileError(said, timed_out=outcome.reason == "wall", isolation=outcome.isolation)
        return Prepared(files={"main": outcome.result}, argv=["./main"])

    async def run(self, program: Prepared, suite: Suite, case: Case, limits: Limits) -> list[Verdict]:
        """What became of one test; of all in it, for a pytest file.

        Args:
            program: See `prepare`.
            suite: The exercise.
            case: One of its tests.
            limits: What the program may use.

        Raises:
            SandboxError: There is no sandbox, or two broke.
            RewardError: The tests need pytest, which is not installed.
        """
        if suite.mode == "stdin":
            return [await self._run_stdin(program, case, limits)]
        if suite.mode == "function":
            return [await self._run_function(program, suite, case, limits)]
        return await self._run_judged(program, suite, case, limits)

    async def _run_stdin(self, program: Prepared, case: Case, limits: Limits) -> Verdict:
        job = Job(
            mode="command" if program.argv else "script",
            files=program.files,
            stdin=case.stdin.encode("utf-8", errors="replace"),
            options={"argv": program.argv},
            limits=limits,
        )
        outcome = await self._pool("").run(job)
        why = _ending(outcome)
        if not why and not same_output(outcome.stdout, case.stdout, tolerance=self.tolerance or None):
            why = f"printed {outcome.stdout[:200]!r}"
        return _verdict(outcome, why)

    async def _run_function(self, program: Prepared, suite: Suite, case: Case, limits: Limits) -> Verdict:
        options = {
            "entry": suite.entry,
            "args": wire.encode(list(case.args)),
            "kwargs": wire.encode(dict(case.kwargs)),
        }
        job = Job(mode="call", files=program.files, options=options, limits=limits)
        outcome = await self._pool("").run(job)
        why = _ending(outcome)
        if not why:
            try:
                value = wire.loads(outcome.result)
            except wire.NotPlainError as error:
                why = f"returned no plain value: {error}"
            else:
                if not same_value(value, case.result, tolerance=self.tolerance):
                    why = f"returned {value!r:.200}"
        return _verdict(outcome, why)

    async def _run_judged(self, program: Prepared, suite: Suite, case: Case, limits: Limits) -> list[Verdict]:
        options = {
            "kind": suite.mode,
            "code": case.code,
            "names": list(PROGRAM_NAMES),
            "operators": names_classes(case.code),
        }
        judge = Job(
            mode="judge",
            files={"test_solution.py": case.code.encode("utf-8", errors="replace")},
            options=options,
            limits=limits,
        )
        pool = self._pool("pytest" if suite.mode == "pytest" else "")
        ended, judged = await pool.run_judged(Job(mode="serve", files=program.files, limits=limits), judge)
        events = _events(judged.result)
        unable = next((str(event["unable"]) for event in events if "unable" in event), "")
        if unable:
            raise RewardError(f"grader 'code' cannot run a pytest file in its sandbox: {unable}")
        timed_out = judged.reason == "wall" or ended.reason == "wall"
        broken = next((str(event["broken"]) for event in events if "broken" in event), "")
        total = max((_count(event.get("collected")) for event in events), default=0)
        total = max(total, _tests_in(case.code) if suite.mode == "pytest" else 1)
        last: dict[str, bool] = {}
        for event in events:
            if "test" in event:
                name = str(event["test"])
                last[name] = last.get(name, True) and event.get("passed") is True
        why = broken or (
            f"the tests ended by {judged.reason}" if judged.reason != "exited" else "a test failed"
        )
        seconds = max(ended.seconds, judged.seconds)
        # A program that did not even load passes nothing, whatever the tests look at.
        results = [passed and not broken for passed in last.values()]
        results += [False] * max(0, total - len(last))
        return [
            Verdict(
                passed=passed,
                why="" if passed else why,
                timed_out=timed_out and not passed,
                seconds=seconds,
                isolation=ended.isolation,
            )
            for passed in results
        ]

    async def close(self) -> None:
        """Nothing is held for one sample: the pool stays warm for the next. See `close_pools`."""

    def _pool(self, judge_preload: str) -> SandboxPool:
        """The pool of this process for these walls; forks of the process get their own."""
        key = (os.getpid(), self.isolation, self.sandboxes, judge_preload)
        if key not in _pools:
            _pools[key] = SandboxPool(
                sandboxes=self.sandboxes,
                isolation=self.isolation,
                judge_preload=(judge_preload,) if judge_preload else (),
            )
        return _pools[key]


async def close_pools() -> None:
    """End the sandboxes that graders of this process keep warm; the next grading starts new ones."""
    while _pools:
        _, pool = _pools.popitem()
        await pool.close()


def _ending(outcome: Outcome) -> str:
    """Why a program cannot have passed, whatever it printed; empty if it ended well."""
    if outcome.reason != "exited":
        return f"ended by its limit: {outcome.reason}"
    if outcome.code != 0:
        tail = outcome.stderr.decode(errors="replace")[-300:]
        return f"exit code {outcome.code}: {tail}"
    return ""


def _verdict(outcome: Outcome, why: str) -> Verdict:
    return Verdict(
        passed=not why,
        why=why,
        timed_out=outcome.reason == "wall" or outcome.code == -signal.SIGXCPU,
        seconds=outcome.seconds,
        isolation=outcome.isolation,
    )


def _events(result: bytes) -> list[dict[str, object]]:
    """What the judge wrote, a line for each event; a last line that was cut off is dropped."""
    events = []
    for line in result.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _tests_in(code: str) -> int:
    """How many tests a pytest file has at least."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return max(
        1, sum(isinstance(node, functions) and node.name.startswith("test") for node in ast.walk(tree))
    )
