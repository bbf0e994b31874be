"""The order in which rows are used, epoch after epoch. Called by pipelines.

A run resumes in it with nothing but an occurrence number.
"""

import numpy as np

from roll_launch.data.errors import DataError


class PromptOrder:
    """Which row is used at which occurrence of a run: every row once an epoch, each epoch shuffled anew.

    A pure function of (number of rows, seed, occurrence), the same on every platform and with every numpy.
    """

    def __init__(self, rows: int, seed: int) -> None:
        """Makes the order of `rows` rows, >= 1, drawn from `seed`, >= 0.

        Raises:
            DataError: if there are no rows, or the seed is negative.
        """
        if rows < 1 or seed < 0:
            raise DataError(
                f"got an order of {rows} rows with seed {seed}; allowed are rows >= 1 and seed >= 0"
            )
        self._rows = rows
        self._seed = seed
        self._epoch = 0
        self._permutation = self._permute(0)

    def row(self, occurrence: int) -> int:
        """The index of the row that occurrence 0, 1, 2, ... uses, in [0, rows)."""
        if occurrence < 0:
            raise DataError(f"got occurrence {occurrence}; allowed are 0, 1, 2, ...")
        epoch, position = divmod(occurrence, self._rows)
        if epoch != self._epoch:
            self._epoch, self._permutation = epoch, self._permute(epoch)
        return int(self._permutation[position])

    def _permute(self, epoch: int) -> np.ndarray:
        """int64[rows], by sorting raw words: numpy keeps those over its versions, unlike `permutation`."""
        words = np.random.PCG64(np.random.SeedSequence([self._seed, epoch])).random_raw(self._rows)
        return np.argsort(words, kind="stable")
