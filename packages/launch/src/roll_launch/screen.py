"""The screen of a run: standard error, for as long as somebody reads it."""

import io
import sys
from typing import TextIO

from rich.console import Console


class Screen(io.TextIOBase):
    """A text stream that goes on when its reader has gone.

    That is a pipe that was closed (`roll-launch run c.yaml 2>&1 | head`), a terminal that was (`disown`), or
    a full disk.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._read = True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class types it as a plain attribute
        """That of the stream."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """That of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes, or drops what nobody will read."""
        if self._read:
            try:
                return self._stream.write(text)
            except OSError:
                self._read = False
        return len(text)

    def flush(self) -> None:
        """Flushes, unless nobody reads."""
        if self._read:
            try:
                self._stream.flush()
            except OSError:
                self._read = False


def screen() -> Console:
    """A console on standard error: a live one on a terminal, plain lines elsewhere."""
    stream = Screen(sys.stderr)
    return Console(file=stream, soft_wrap=True, highlight=False, markup=False)  # type: ignore[arg-type]  # it is text IO
