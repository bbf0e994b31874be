"""Random numbers of the rows of a batch: one stream a request, one number a token."""

import numpy as np

_BLOCK = 128


class UniformStreams:
    """Uniform numbers in [0, 1) for `rows` requests at once.

    The stream of a request is `numpy.random.Philox` keyed by its seed and nothing else, so that its
    numbers do not depend on its neighbours, its row or the time. Numbers are drawn a block at a time
    and read one a token.

    Args:
        rows: Most rows.
    """

    def __init__(self, rows: int) -> None:
        self._blocks = np.zeros((rows, _BLOCK))
        self._generators: list[np.random.Generator | None] = [None] * rows
        self._all_rows = np.arange(rows)

    def open(self, row: int, seed: int, *, at: int = 0) -> None:
        """Starts the stream of `seed` in a row, at number `at`."""
        self._generators[row] = np.random.Generator(np.random.Philox(key=seed))
        # The blocks before that number; and its own, unless `draw` is about to fetch it.
        for _ in range(at // _BLOCK + (at % _BLOCK > 0)):
            self._fill(row)

    def move(self, source: int, target: int) -> None:
        """Continues the stream of one row in another."""
        self._blocks[target] = self._blocks[source]
        self._generators[target] = self._generators[source]

    def draw(self, rows: slice, index: np.ndarray) -> np.ndarray:
        """Returns float64[B]: number `index[b]` of each stream.

        Args:
            rows: The B rows.
            index: int64[B], how many numbers each stream has given before; rises by one a call.
        """
        place = index % _BLOCK
        numbers = self._all_rows[rows]
        for row in numbers[place == 0]:
            self._fill(row)
        drawn: np.ndarray = self._blocks[numbers, place]
        return drawn

    def _fill(self, row: int) -> None:
        generator = self._generators[row]
        if generator is None:
            raise RuntimeError(f"row {row} has no stream; open() comes before draw()")
        generator.random(out=self._blocks[row])
