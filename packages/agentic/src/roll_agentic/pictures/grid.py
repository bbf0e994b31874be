"""Pictures of grid worlds, for vision-language policies and replays, drawn with numpy and zlib."""

import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from roll_agentic.errors import AgenticError

Colour = tuple[int, int, int]

_FLOOR: Colour = (233, 237, 242)
_MARKS: Mapping[str, tuple[Colour, str, Colour]] = {
    "_": (_FLOOR, "", _FLOOR),
    "#": ((82, 89, 102), "", _FLOOR),
    "P": (_FLOOR, "disc", (33, 102, 206)),
    "S": ((250, 214, 120), "disc", (33, 102, 206)),
    "O": ((250, 214, 120), "ring", (196, 138, 18)),
    "G": ((198, 236, 203), "diamond", (28, 132, 60)),
    "X": (_FLOOR, "box", (150, 92, 46)),
    "*": ((250, 214, 120), "box", (74, 140, 60)),
    "V": ((198, 236, 203), "disc", (33, 102, 206)),
    ".": (_FLOOR, "", _FLOOR),
}


def grid_png(rows: Sequence[str], *, cell: int = 24) -> bytes:
    """A picture of a board as PNG.

    Args:
        rows: Lines of equal length; each character is a cell, an unknown one gets a colour of its own.
        cell: Pixels of a cell's side, at least 8.

    Raises:
        AgenticError: There are no rows, they differ in length, or the cell is too small.
    """
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows) or cell < 8:
        raise AgenticError(
            "a picture needs rows of one length and cells of at least 8 pixels, "
            f"got {list(rows)!r:.80} and {cell}"
        )
    bands = [np.concatenate([_tile(mark, cell) for mark in row], axis=1) for row in rows]
    return png(np.concatenate(bands, axis=0))


def png(pixels: np.ndarray) -> bytes:
    """An image file.

    Args:
        pixels: uint8[H, W, 3], red, green and blue.
    """
    height, width, _ = pixels.shape
    # Each line starts with its filter, 0 for none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _tile(mark: str, cell: int) -> np.ndarray:
    """uint8[cell, cell, 3], a cell with a thin border."""
    ground, shape, ink = _MARKS.get(mark, (_FLOOR, "disc", _own_colour(mark)))
    tile = np.full((cell, cell, 3), ground, np.uint8)
    along = np.abs(np.arange(cell) - (cell - 1) / 2) / (cell / 2)
    down, right = along[:, None], along[None, :]
    distance = np.hypot(down, right)
    inked = {
        "disc": distance < 0.62,
        "ring": (distance < 0.66) & (distance > 0.4),
        "diamond": down + right < 0.72,
        "box": np.maximum(down, right) < 0.68,
    }.get(shape)
    if inked is not None:
        tile[inked] = ink
    tile[0, :] = tile[:, 0] = np.array(ground, np.float64) * 0.88
    return tile


def _own_colour(mark: str) -> Colour:
    number = zlib.crc32(mark.encode("utf-8", "replace"))
    return number & 0x7F | 0x40, number >> 8 & 0x7F | 0x40, number >> 16 & 0x7F | 0x40
