"""Random numbers that depend on a seed and on which completion they are for, not on the order of asking."""

import zlib

import numpy as np

__all__ = ["NoiseTable"]

BLOCK = 256
"""Rows that are drawn at once."""


class NoiseTable:
    """A table of standard normal numbers without end in both directions, for example one a completion.

    Wider tables have the same numbers in their first columns, so that a policy with more members a group sees
    the same first members.

    Args:
        seed: Any integer >= 0.
        label: What the numbers are for; tables with other labels are independent.
    """

    def __init__(self, seed: int, label: str) -> None:
        self._key = (seed, zlib.crc32(label.encode()))
        self._blocks: dict[int, np.ndarray] = {}

    def value(self, row: int, column: int) -> float:
        """The number at a place of the table."""
        block, offset = divmod(row, BLOCK)
        return float(self._block(block, column + 1)[column, offset])

    def columns(self, rows: np.ndarray, width: int) -> np.ndarray:
        """float64 [width, rows]: the first `width` numbers of each row.

        Args:
            rows: int64 [rows], row numbers.
            width: Number of columns, >= 1.
        """
        blocks, offsets = np.divmod(rows, BLOCK)
        out = np.empty((width, rows.size))
        for block in np.unique(blocks):
            here = blocks == block
            out[:, here] = self._block(int(block), width)[:width, offsets[here]]
        return out

    def _block(self, block: int, width: int) -> np.ndarray:
        known = self._blocks.get(block)
        if known is None or known.shape[0] < width:
            known = np.random.default_rng([*self._key, block]).standard_normal((width, BLOCK))
            self._blocks[block] = known
        return known
