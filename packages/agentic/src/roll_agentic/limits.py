"""What bounds an episode. Checked by the episode runner before every turn."""

import asyncio
import math
from dataclasses import dataclass

from roll_agentic.errors import AgenticError

# A call that begins when the time is up still gets this long, so that a deadline is never 0.
_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an episode; None is no bound.

    Example: `Limits(max_turns=10, max_tokens=8192, max_tool_calls=5, seconds=300.0)`.

    Attributes:
        max_turns: Turns of the policy, at least 1.
        max_tokens: Tokens of the history, at least 1; no turn begins once it has so many.
        max_tool_calls: Calls of tools, at least 1; likewise.
        seconds: Wall-clock time, above 0.

    Raises:
        AgenticError: A bound is out of its range.
    """

    max_turns: int
    max_tokens: int | None = None
    max_tool_calls: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tokens", "max_tool_calls"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AgenticError(f"run_episode needs {name} of at least 1, got {value}")
        if self.seconds is not None and not self.seconds > 0:
            raise AgenticError(f"run_episode needs seconds above 0, got {self.seconds}")


class Clock:
    """How much of an episode's time is left, by the clock of the running event loop.

    Args:
        seconds: Time of the episode; None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._now = asyncio.get_running_loop().time
        self._started = self._now()
        self._ends = math.inf if seconds is None else self._started + seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._now() - self._started

    @property
    def left(self) -> float:
        """Seconds until the end, at least a millisecond; infinite without a limit."""
        return max(self._ends - self._now(), _LEAST_S)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._now() >= self._ends
