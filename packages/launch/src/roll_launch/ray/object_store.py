"""Ray's object store as transports of weights see it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError


class RayObjectStore:
    """`roll_rollout.sync.ObjectStore` of the cluster that the process belongs to."""

    def put(self, data: np.ndarray) -> object:
        """Returns a reference; the store copies the bytes."""
        return ray.put(data)

    def get(self, references: Sequence[object], *, deadline_s: float) -> list[np.ndarray]:
        """Returns views of the store's memory.

        Raises:
            TimeoutError: They did not come in time.
        """
        wanted: Any = list(references)
        try:
            found: list[np.ndarray] = ray.get(wanted, timeout=deadline_s)
        except GetTimeoutError as error:
            raise TimeoutError(str(error)) from error
        return found
