"""What a worker may use, and what a pool says of its calls."""

from dataclasses import dataclass

from roll_rewards.errors import RewardError

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What one worker process may use.

    Example: `WorkerLimits(memory_mb=2048, cpu_s=30)`.

    Attributes:
        memory_mb: Address space of a worker in MiB, at least 64; past it allocations raise MemoryError.
        cpu_s: Processor seconds of one call, at least 1; past it the worker is killed. None has no limit
            but the deadline.
        result_mb: Largest result of a call in MiB once serialised, above 0.
        request_mb: Largest arguments of a call in MiB once serialised, above 0.

    Raises:
        RewardError: A limit is out of its range.
    """

    memory_mb: int = 4096
    cpu_s: int | None = None
    result_mb: float = 16.0
    request_mb: float = 64.0

    def __post_init__(self) -> None:
        if self.memory_mb < 64:
            raise RewardError(f"WorkerLimits.memory_mb must be at least 64, got {self.memory_mb}")
        if self.cpu_s is not None and self.cpu_s < 1:
            raise RewardError(f"WorkerLimits.cpu_s must be at least 1 or None, got {self.cpu_s}")
        if not (0 < self.result_mb <= 1024 and 0 < self.request_mb <= 1024):
            raise RewardError(
                "WorkerLimits.result_mb and request_mb must be above 0 and at most 1024, "
                f"got {self.result_mb} and {self.request_mb}"
            )

    @property
    def result_bytes(self) -> int:
        """`result_mb` in bytes."""
        return int(self.result_mb * _MIB)

    @property
    def request_bytes(self) -> int:
        """`request_mb` in bytes."""
        return int(self.request_mb * _MIB)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SlowCall:
    """One of the slowest calls of a pool.

    Example: `SlowCall(seconds=4.2, label="row 17", function="my_rewards:symbolic", outcome="ok")`.

    Attributes:
        seconds: Wall time in the worker, waiting in the queue not counted.
        label: What the caller named the call, else the beginning of its arguments.
        function: The function's import path.
        outcome: `ok`, `failed` (raised), `timed_out` or `died`.
    """

    seconds: float
    label: str
    function: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """Counts of a pool since it was made.

    Example: `PoolReport(calls=512, failed=0, timed_out=2, died=1, replaced=3, slowest=(...))`.

    Attributes:
        calls: Calls that ended, however.
        failed: Of these, functions that raised.
        timed_out: Of these, calls cut at their deadline.
        died: Of these, calls whose worker ended under them.
        replaced: Workers that were started in place of a dead or killed one.
        slowest: The slowest calls, slowest first.
    """

    calls: int
    failed: int
    timed_out: int
    died: int
    replaced: int
    slowest: tuple[SlowCall, ...]
