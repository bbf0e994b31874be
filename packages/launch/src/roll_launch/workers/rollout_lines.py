"""Lines of a rollouts file, written so that a call that is repeated elsewhere doubles nothing."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_lines(path: Path, rows: Iterable[Mapping[str, object]], *, offset: int) -> int:
    """Writes one JSON line a row from byte `offset` on, over whatever stands there.

    Returns:
        The file's new length.

    Raises:
        OSError: The file is shorter than `offset`, or cannot be written.
    """
    lines = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows]
    with path.open("r+b" if path.exists() else "w+b") as file:
        length = file.seek(0, os.SEEK_END)
        if length < offset:
            raise OSError(f"{path} has {length} bytes, but {offset} were written to it before")
        file.truncate(offset)
        file.seek(offset)
        file.write("".join(lines).encode("utf-8", errors="replace"))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def finite(value: float) -> float | None:
    """JSON has no NaN: a missing verdict is null."""
    return value if math.isfinite(value) else None
