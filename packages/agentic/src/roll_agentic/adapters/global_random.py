"""A global random state for each environment of a library that draws from it. Used by adapters."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOCK = threading.RLock()


class GlobalRandom:
    """The state of `random` and `numpy.random` that belongs to one environment.

    Calls in it exclude each other, so that environments in several threads neither share nor disturb
    a state; the program's own state is put back afterwards.
    """

    def __init__(self) -> None:
        self._states: tuple[object, object] | None = None

    def seed(self, seed: int) -> None:
        """Begin anew.

        Args:
            seed: At least 0; numpy gets its lowest 32 bits.
        """
        self._states = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(legacy=True),
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the context, the global state is this one."""
        with _LOCK:
            outside = random.getstate(), np.random.get_state(legacy=True)
            if self._states is not None:
                random.setstate(self._states[0])  # type: ignore[arg-type]  # what getstate returned
                np.random.set_state(self._states[1])  # type: ignore[arg-type]  # what get_state returned
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state(legacy=True)
                random.setstate(outside[0])
                np.random.set_state(outside[1])
