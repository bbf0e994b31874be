"""Grader `code`: a program in the response is run against tests, in a sandbox, and judged from outside."""

import hashlib
import shutil
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from roll_rewards.errors import RewardError
from roll_rewards.graders.code.cases import Case, Suite, read_suite
from roll_rewards.graders.code.extraction import extract_code, language_called
from roll_rewards.graders.code.local import LocalRunner
from roll_rewards.graders.code.remote import FusionService, RemoteRunner
from roll_rewards.graders.code.rock import RockService
from roll_rewards.graders.code.verdicts import CompileError, Verdict
from roll_rewards.sandbox.records import Limits
from roll_rewards.scores import Score
from roll_rewards.workers.adaptive import AdaptiveDeadline

_COMPILER = "g++"
_deadlines: dict[tuple[float, float, float], AdaptiveDeadline] = {}


class Runner(Protocol):
    """Runs tests: `LocalRunner` and `RemoteRunner`."""

    async def prepare(self, source: bytes) -> Any:
        """A program that is ready to run; raises `CompileError`."""
        ...

    async def run(self, program: Any, suite: Suite, case: Case, limits: Limits) -> list[Verdict]:
        """What became of one test, or of all in it."""
        ...

    async def close(self) -> None:
        """Give back what is held for this sample."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The share of tests that the program in a response passes, or 1 only if it passes all.

    Tests come as the reference (see `cases.read_suite`): standard input and output, calls of a function,
    assertions, or a pytest file. Each runs with a fresh process and an empty directory, behind the
    strongest walls that the machine allows (see `SandboxPool`). What a test expects never comes near
    the program: outputs are compared outside of its sandbox, and assertions run in another one, which
    sees the program's values and never its code.

    Parts of the score: `passed` and `total` (counts), `all` and `fraction`, `compiled`, and
    `isolation/<walls>` = 1.

    Example: `Code()` gives 1 to the response "print(int(input()) + 1)" under the reference
    `[{"stdin": "1", "stdout": "2"}]`.

    Attributes:
        language: `python`, `cpp` (g++ -O2 -std=c++17) or `shell` (bash); the column `language` overrides it
            and may use other common names.
        credit: `fraction` of the tests passed, or `all` or nothing (then it stops at the first failure).
        fence: Which of several fenced blocks is the program.
        fenced_only: Whether a response without a fenced block has no program.
        prelude: Code put before every Python program, as `from typing import *`.
        tolerance: Error allowed in numbers, absolute and relative; 0 compares printed numbers as text.
        wall_s: Seconds for each test, above 0.
        compile_s: Seconds for compiling C++, above 0.
        memory_mb: MiB for all processes of a test together, at least 32.
        processes: Processes and threads at once.
        output_kb: KiB that a test may print.
        scratch_mb: MiB of files.
        max_chars: Longest program that is run; a longer one fails its tests.
        adaptive: Let the time limit of a test follow the longest run of a right answer to it, between
            `adaptive_min_s` and `wall_s`. Cut runs are counted in the part `cut`.
        adaptive_min_s: See `adaptive`.
        sandboxes: Tests at the same time in this process; shared by all graders with the same walls.
        isolation: Which walls; `auto` takes the strongest.
        backend: `local` sandboxes, a `sandbox_fusion` service (HTTP, `/run_code`), or `rock` (ROCK's
            sandboxes, a fresh one for each sample; extra `rock`). See `RemoteRunner` for what services can
            judge.
        url: Address of the service.
        key_variable: Environment variable with the service's bearer token; None sends none.
        image: Container image for ROCK.

    Raises:
        RewardError: An option is out of its range or needs a program that is not installed; when
            grading, the reference has no tests that can be read.
        SandboxError: When grading, no sandbox can be had, or two broke under one test.
    """

    language: Literal["python", "cpp", "shell"] = "python"
    credit: Literal["fraction", "all"] = "fraction"
    fence: Literal["last", "first", "longest", "all"] = "last"
    fenced_only: bool = False
    prelude: str = ""
    tolerance: float = 0.0
    wall_s: float = 10.0
    compile_s: float = 30.0
    memory_mb: int = 1024
    processes: int = 32
    output_kb: int = 1024
    scratch_mb: int = 64
    max_chars: int = 1_000_000
    adaptive: bool = False
    adaptive_min_s: float = 2.0
    sandboxes: int = 2
    isolation: Literal["auto", "namespaces", "bubblewrap", "rlimits"] = "auto"
    backend: Literal["local", "sandbox_fusion", "rock"] = "local"
    url: str = ""
    key_variable: str | None = None
    image: str = "python:3.11"

    def __post_init__(self) -> None:
        if not self.tolerance >= 0 or self.max_chars < 1 or self.sandboxes < 1:
            raise RewardError(
                "grader 'code' needs tolerance >= 0, max_chars >= 1 and sandboxes >= 1, "
                f"got {self.tolerance}, {self.max_chars} and {self.sandboxes}"
            )
        if self.adaptive and not 0 < self.adaptive_min_s <= self.wall_s:
            raise RewardError(
                "option 'adaptive_min_s' of grader 'code' must be above 0 and at most wall_s, "
                f"got {self.adaptive_min_s} with wall_s={self.wall_s}"
            )
        if (self.backend == "local") != (self.url == ""):
            raise RewardError(
                "option 'url' of grader 'code' is for the back-ends 'sandbox_fusion' and 'rock', which need "
                f"it; got url={self.url!r} with backend={self.backend!r}"
            )
        self._limits(self.wall_s)
        self._limits(self.compile_s)
        self._need_compiler(self.language)

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` is the program. See `Grader.grade`."""
        language = language_called(columns.get("language", self.language))
        self._need_compiler(language)
        suite = read_suite(reference, columns)
        if suite.mode != "stdin" and language != "python":
            raise RewardError(
                f"mode {suite.mode!r} of grader 'code' is for Python, got language {language!r}"
            )
        program = extract_code(response, language=language, fence=self.fence, fenced_only=self.fenced_only)
        if program is None or len(program) > self.max_chars:
            return Score(value=0.0, parts=_parts([], len(suite.cases)), parsed=None)
        source = program.encode("utf-8", errors="replace")
        if language == "python" and self.prelude:
            source = self.prelude.encode() + b"\n" + source
        return await self._judged(source, program, language, suite)

    async def _judged(self, source: bytes, program: str, language: str, suite: Suite) -> Score:
        runner = self._runner(language)
        verdicts: list[Verdict] = []
        cut = 0
        try:
            prepared = await runner.prepare(source)
            for case in suite.cases:
                wall_s, deadline, key = self._time(suite, case)
                found = await runner.run(prepared, suite, case, self._limits(wall_s))
                verdicts += found
                passed = all(verdict.passed for verdict in found)
                if deadline is not None:
                    deadline.record(key, seconds=max(v.seconds for v in found), right=passed)
                    cut += wall_s < self.wall_s and any(v.timed_out for v in found)
                if self.credit == "all" and not passed:
                    break
        except CompileError as error:
            parts = _parts([], len(suite.cases)) | {"compiled": 0.0} | error.parts
            return Score(value=0.0, parts=parts, parsed=program, timed_out=error.timed_out)
        finally:
            await runner.close()
        total = max(len(verdicts), len(suite.cases))
        parts = _parts(verdicts, total) | ({"cut": float(cut)} if self.adaptive else {})
        timed_out = any(verdict.timed_out for verdict in verdicts)
        return Score(value=parts[self.credit], parts=parts, parsed=program, timed_out=timed_out)

    def _runner(self, language: str) -> Runner:
        """Where and how tests are run."""
        if self.backend == "local":
            return LocalRunner(
                isolation=self.isolation,
                sandboxes=self.sandboxes,
                language=language,
                tolerance=self.tolerance,
                compile_s=self.compile_s,
            )
        service: FusionService | RockService = FusionService(url=self.url, key_variable=self.key_variable)
        if self.backend == "rock":
            service = RockService(
                url=self.url,
                image=self.image,
                key_variable=self.key_variable,
                memory=f"{self.memory_mb}m",
            )
        return RemoteRunner(
            service=service, language=language, tolerance=self.tolerance, compile_s=self.compile_s
        )

    def _limits(self, wall_s: float) -> Limits:
        return Limits(
            wall_s=wall_s,
            memory_mb=self.memory_mb,
            processes=self.processes,
            output_kb=self.output_kb,
            scratch_mb=self.scratch_mb,
        )

    def _time(self, suite: Suite, case: Case) -> tuple[float, AdaptiveDeadline | None, str]:
        """The wall limit of a test, and where its time is learnt."""
        if not self.adaptive:
            return self.wall_s, None, ""
        rule = (1.5, self.adaptive_min_s, self.wall_s)
        if rule not in _deadlines:
            _deadlines[rule] = AdaptiveDeadline(factor=rule[0], min_s=rule[1], max_s=rule[2])
        key = hashlib.sha256(f"{suite.mode} {suite.entry} {case!r}".encode(errors="replace")).hexdigest()
        return _deadlines[rule].limit(key), _deadlines[rule], key

    def _need_compiler(self, language: str) -> None:
        if language == "cpp" and self.backend == "local" and shutil.which(_COMPILER) is None:
            raise RewardError(f"grader 'code' needs {_COMPILER} for C++, which is not installed")


def _parts(verdicts: list[Verdict], total: int) -> dict[str, float]:
    passed = sum(verdict.passed for verdict in verdicts)
    parts = {
        "passed": float(passed),
        "total": float(total),
        "fraction": passed / total if total else 0.0,
        # No tests prove nothing.
        "all": float(total > 0 and passed == total),
        "compiled": 1.0,
    }
    return parts | {f"isolation/{verdict.isolation}": 1.0 for verdict in verdicts}
