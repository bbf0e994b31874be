"""Where a run's wall time goes, by named phase."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping


class PhaseTimes:
    """Seconds by phase, for the present step and in all.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._step: dict[str, float] = {}
        self._total: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the body's wall time to `name`."""
        began = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - began
            self._step[name] = self._step.get(name, 0.0) + spent
            self._total[name] = self._total.get(name, 0.0) + spent

    def end_step(self) -> dict[str, float]:
        """The phases since the last call as `timing_s/NAME`, and their count begins anew."""
        step, self._step = self._step, {}
        return {f"timing_s/{name}": seconds for name, seconds in step.items()}

    def restore(self, totals: Mapping[str, float]) -> None:
        """Takes over `totals` of before a resume."""
        self._total = {name.removeprefix("timing_s/"): seconds for name, seconds in totals.items()}

    def totals(self) -> dict[str, float]:
        """All phases since the beginning as `timing_s/NAME`."""
        return {f"timing_s/{name}": seconds for name, seconds in self._total.items()}
