"""What a sandbox is asked, under which limits, and what it says afterwards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from roll_rewards.errors import RewardError

Isolation = Literal["namespaces", "bubblewrap", "rlimits"]
Mode = Literal["script", "call", "serve", "judge", "command", "compile"]
Reason = Literal["exited", "wall", "memory", "output", "disk", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use in one run.

    Example: `Limits(wall_s=4, memory_mb=512)`.

    Attributes:
        wall_s: Wall seconds, above 0; every process of the run is killed then.
        cpu_s: Processor seconds of each process, at least 1; None is a second more than `wall_s`.
        memory_mb: MiB of address space of each process and of memory in use by all together, at least 32.
        processes: Processes and threads at once, 1..1024.
        output_kb: KiB on standard output, on standard error and of a result, each, at least 1.
        scratch_mb: MiB of files and of a single file, 1..4096.

    Raises:
        RewardError: A limit is out of its range.
    """

    wall_s: float = 10.0
    cpu_s: int | None = None
    memory_mb: int = 1024
    processes: int = 32
    output_kb: int = 1024
    scratch_mb: int = 64

    def __post_init__(self) -> None:
        allowed = {
            "wall_s": (math.isfinite(self.wall_s) and 0 < self.wall_s <= 86400, "above 0, at most 86400"),
            "cpu_s": (self.cpu_s is None or self.cpu_s >= 1, "at least 1, or None"),
            "memory_mb": (32 <= self.memory_mb <= 2**20, "32..1048576"),
            "processes": (1 <= self.processes <= 1024, "1..1024"),
            "output_kb": (1 <= self.output_kb <= 2**20, "1..1048576"),
            "scratch_mb": (1 <= self.scratch_mb <= 4096, "1..4096"),
        }
        for name, (right, range_) in allowed.items():
            if not right:
                raise RewardError(f"Limits.{name} must be {range_}, got {getattr(self, name)!r}")

    @property
    def order(self) -> dict[str, float]:
        """The limits as the warden of a sandbox reads them."""
        return {
            "wall_s": self.wall_s,
            "cpu_s": math.ceil(self.wall_s) + 1 if self.cpu_s is None else self.cpu_s,
            "memory_mb": self.memory_mb,
            "processes": self.processes,
            "output_bytes": self.output_kb * 1024,
            "scratch_mb": self.scratch_mb,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program and what it is given.

    Example: `Job(mode="script", files={"main.py": b"print(input())"}, stdin=b"7")`.

    Attributes:
        mode: `script` runs `main.py`; `call` calls a function in it; `serve` lets a judge use it, and
            `judge` is that judge; `command` replaces the process by another program; `compile` runs a
            compiler and gives its output file as the result.
        files: Names and contents of files in the working directory.
        stdin: Standard input.
        options: What the mode needs besides, plain JSON.
        limits: What it may use.
    """

    mode: Mode
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program ended, told by those who watched it, and what it left.

    Example: `Outcome(reason="exited", code=0, stdout=b"7\\n", isolation="namespaces", ...)`.

    Attributes:
        reason: `exited` by itself, or the limit that ended it: `wall`, `memory`, `output`, `disk`; `stopped`
            by the caller.
        code: Exit code, or minus the signal that ended it; None if a limit did.
        stdout: Standard output up to its limit.
        stderr: Standard error up to its limit.
        result: What it left as a result up to the limit of output, empty without one.
        seconds: Wall time.
        cpu_s: Processor time of all its processes.
        peak_mb: Most memory seen in use, in MiB; looked at every few hundredths of a second.
        isolation: What stood between it and the host: `namespaces`, `bubblewrap` or `rlimits`.
    """

    reason: Reason
    code: int | None
    stdout: bytes
    stderr: bytes
    result: bytes
    seconds: float
    cpu_s: float
    peak_mb: float
    isolation: Isolation

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.reason == "exited" and self.code == 0
