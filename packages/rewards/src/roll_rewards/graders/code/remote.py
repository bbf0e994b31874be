"""Tests run by a sandbox service elsewhere, and judged here. Called by the `code` grader."""

import ast
import base64
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from roll_rewards.errors import RewardError
from roll_rewards.graders.code.cases import Case, Suite
from roll_rewards.graders.code.comparison import same_output, same_value
from roll_rewards.graders.code.verdicts import CompileError, Verdict
from roll_rewards.remote.patience import Patience, authorization, send_patiently
from roll_rewards.remote.transport import RemoteError, send
from roll_rewards.sandbox.inside import wire
from roll_rewards.sandbox.records import Limits

_NAMES = {"python": "python", "cpp": "cpp", "shell": "bash"}
_SPARE_S = 30.0
_WIRE = Path(wire.__file__).read_text(encoding="utf-8")
_DRIVER = """
import sys, types
import roll_wire
module = types.ModuleType("solution")
sys.modules["solution"] = module
with open("roll_program.py", "rb") as file:
    exec(compile(file.read(), "roll_program.py", "exec"), module.__dict__)
entry = {entry!r}
owner, _, method = entry.rpartition(".")
if not owner and not hasattr(module, entry) and hasattr(module, "Solution"):
    owner = "Solution"
function = getattr(getattr(module, owner)(), method or entry) if owner else getattr(module, entry)
value = function(*roll_wire.decode({args!r}), **roll_wire.decode({kwargs!r}))
answer = roll_wire.dumps(value).decode()
sys.stdout.write({mark!r} + answer + {mark!r})
sys.stdout.flush()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a service is given to run once.

    Attributes:
        language: `python`, `cpp` or `shell`.
        code: The main file.
        files: Further files beside it.
        stdin: Standard input.
        wall_s: Seconds for the run.
        compile_s: Seconds for compiling.
        memory_mb: MiB of memory, for services that can limit it.
    """

    language: str
    code: str
    files: Mapping[str, bytes]
    stdin: str
    wall_s: float
    compile_s: float
    memory_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a service says of one run.

    Attributes:
        code: Exit code; None if a limit ended it.
        timed_out: Whether that was its time.
        stdout: Standard output.
        stderr: Standard error, or what the compiler said.
        seconds: Time of the run.
        compiled: Whether it came to a run.
    """

    code: int | None
    timed_out: bool
    stdout: str
    stderr: str
    seconds: float
    compiled: bool = True


class SandboxService(Protocol):
    """Runs programs somewhere."""

    @property
    def name(self) -> str:
        """What stands for it in parts of a score."""
        ...

    async def run(self, program: Program) -> Ran:
        """What became of one program.

        Raises:
            RewardError: The service failed, which says nothing of the program.
        """
        ...

    async def close(self) -> None:
        """Give back what the service holds for this sample."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionService:
    """An HTTP service with SandboxFusion's `/run_code`.

    Attributes:
        url: Address of the service, without `/run_code`.
        key_variable: Environment variable with a bearer token; None sends none.
        patience: How often a request is repeated.
        name: What stands for it in parts of a score.
    """

    url: str
    key_variable: str | None = None
    patience: Patience = field(default_factory=Patience)
    name: str = "sandbox_fusion"

    async def run(self, program: Program) -> Ran:
        """See `SandboxService.run`."""
        payload = {
            "code": program.code,
            "language": _NAMES[program.language],
            "stdin": program.stdin,
            "run_timeout": program.wall_s,
            "compile_timeout": program.compile_s,
            "memory_limit_MB": program.memory_mb,
            "files": {name: base64.b64encode(data).decode() for name, data in program.files.items()},
        }
        address = self.url.rstrip("/") + "/run_code"
        headers = authorization(self.key_variable)
        timeout_s = program.wall_s + program.compile_s + _SPARE_S
        last = ""
        for _ in range(self.patience.attempts):
            reply = await send_patiently(
                lambda: send("POST", address, payload=payload, headers=headers, timeout_s=timeout_s),
                self.patience,
                "the sandbox service",
            )
            answer = reply.json("the sandbox service")
            if not isinstance(answer, dict):
                raise RemoteError(f"the sandbox service answered no object: {answer!r:.200}")
            if answer.get("status") != "SandboxError":
                return self._read(answer)
            last = str(answer.get("message"))[:500]
        raise RemoteError(f"the sandbox service could not run a program: {last}")

    async def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _read(answer: dict[str, object]) -> Ran:
        compiling, running = answer.get("compile_result"), answer.get("run_result")
        part = running if isinstance(running, dict) else compiling
        if not isinstance(part, dict) or answer.get("status") not in ("Success", "Failed"):
            raise RemoteError(f"the sandbox service answered in another form: {str(answer)[:300]}")
        state, code, seconds = part.get("status"), part.get("return_code"), part.get("execution_time")
        if state == "Error" and code is None:
            raise RemoteError(f"the sandbox service could not start a program: {part.get('stderr')!s:.300}")
        return Ran(
            code=code if isinstance(code, int) and state == "Finished" else None,
            timed_out=state == "TimeLimitExceeded",
            stdout=str(part.get("stdout") or ""),
            stderr=str(part.get("stderr") or ""),
            seconds=float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else 0.0,
            compiled=part is running,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRunner:
    """Runs tests in a service and judges here, so that the program never sees what is expected.

    Modes `stdin` and `function`, and assertions of the form `assert f(...) == value` with literals; other
    assertions and pytest files need a judge beside the program, which only local sandboxes have.

    Attributes:
        service: Where programs run.
        language: `python`, `cpp` or `shell`.
        tolerance: See `Code.tolerance`.
        compile_s: See `Code.compile_s`.
    """

    service: SandboxService
    language: str
    tolerance: float
    compile_s: float

    async def prepare(self, source: bytes) -> str:
        """The program's text; services compile it for each test."""
        return source.decode("utf-8", errors="replace")

    async def run(self, program: str, suite: Suite, case: Case, limits: Limits) -> list[Verdict]:
        """What became of one test.

        Raises:
            CompileError: The program does not compile.
            RewardError: The service failed, or the test needs a local sandbox.
        """
        if suite.mode == "asserts":
            suite, case = _as_call(case.code)
        if suite.mode == "pytest":
            raise RewardError("a pytest file needs a local sandbox; grader 'code' has a remote one")
        mark = f"\n{secrets.token_hex(16)}\n"
        function = suite.mode == "function"
        ran = await self.service.run(
            Program(
                language=self.language,
                code=_driver(suite, case, mark) if function else program,
                files={"roll_wire.py": _WIRE.encode(), "roll_program.py": program.encode()}
                if function
                else {},
                stdin=case.stdin,
                wall_s=limits.wall_s,
                compile_s=self.compile_s,
                memory_mb=limits.memory_mb,
            )
        )
        if not ran.compiled:
            raise CompileError(ran.stderr[:2000], timed_out=ran.timed_out, isolation=self.service.name)
        right = ran.code == 0 and (
            self._returned(ran.stdout, mark, case) if function else self._printed(ran.stdout, case)
        )
        why = "" if right else f"exit code {ran.code}, printed {ran.stdout[:200]!r}, {ran.stderr[-200:]!r}"
        return [
            Verdict(
                passed=right,
                why=why,
                timed_out=ran.timed_out,
                seconds=ran.seconds,
                isolation=self.service.name,
            )
        ]

    async def close(self) -> None:
        """Give back what the service holds for this sample."""
        await self.service.close()

    def _printed(self, stdout: str, case: Case) -> bool:
        data = stdout.encode("utf-8", errors="surrogatepass")
        return same_output(data, case.stdout, tolerance=self.tolerance or None)

    def _returned(self, stdout: str, mark: str, case: Case) -> bool:
        parts = stdout.replace("\r\n", "\n").split(mark)
        if len(parts) != 3:
            return False
        try:
            value = wire.loads(parts[1].encode())
        except wire.NotPlainError:
            return False
        return same_value(value, case.result, tolerance=self.tolerance)


def _driver(suite: Suite, case: Case, mark: str) -> str:
    return _DRIVER.format(
        entry=suite.entry,
        args=wire.encode(list(case.args)),
        kwargs=wire.encode(dict(case.kwargs)),
        mark=mark,
    )


def _as_call(code: str) -> tuple[Suite, Case]:
    """An assertion `f(literals) == literal` as a test of mode `function`.

    Raises:
        RewardError: It is anything else.
    """
    try:
        statements = ast.parse(code).body
        match statements:
            case [
                ast.Assert(
                    test=ast.Compare(
                        left=ast.Call(func=ast.Name(id=entry), args=args, keywords=keywords),
                        ops=[ast.Eq()],
                        comparators=[wanted],
                    )
                )
            ]:
                case = Case(
                    args=tuple(ast.literal_eval(arg) for arg in args),
                    kwargs={str(k.arg): ast.literal_eval(k.value) for k in keywords},
                    result=ast.literal_eval(wanted),
                )
                return Suite(mode="function", cases=(case,), entry=entry), case
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    raise RewardError(
        "a remote sandbox can judge assertions of the form 'assert f(1, 2) == 3' alone; others need a local "
        f"one, got {code!r:.200}"
    )
