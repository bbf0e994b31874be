"""The elements in which two versions of a tensor differ, compressed: exclusive-or, mask and codec."""

import importlib
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from roll_rollout.errors import WeightMismatch
from roll_rollout.sync.transport import SyncError
from roll_rollout.weights import DTYPE_BYTES

PIECE_BYTES = 1 << 24

_WORDS: Mapping[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_HEAD = struct.Struct("<BBQ")
_PIECE = struct.Struct("<QQQ")
_ZSTD = ("compression.zstd", "backports.zstd", "zstandard")
"""Where zstd is: in Python from 3.14 on, or in one of two packages (extra `zstd`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A compression: Codec(name="zlib", code=1, level=1)."""

    name: str
    code: int
    level: int

    @classmethod
    def best(cls, level: int) -> Self:
        """Returns zstd where a library has it, otherwise zlib; none for level 0.

        Raises:
            SyncError: The level is out of its range.
        """
        if not 0 <= level <= 9:
            raise SyncError(f"delta: level is {level}, allowed is 0 to 9")
        if level == 0:
            return cls(name="none", code=0, level=0)
        if _zstd() is not None:
            return cls(name="zstd", code=2, level=level)
        return cls(name="zlib", code=1, level=level)

    def compressed(self, data: np.ndarray) -> bytes:
        """Returns the compressed bytes of a contiguous array."""
        if self.code == 0:
            return data.tobytes()
        if self.code == 1:
            return zlib.compress(data.data, self.level)
        library: Any = _zstd()
        if library.__name__ == "zstandard":
            packed: bytes = library.ZstdCompressor(level=self.level).compress(data.data)
            return packed
        packed = library.compress(data.data, self.level)
        return packed


def changes_between(old: np.ndarray, new: np.ndarray, *, dtype: str, codec: Codec) -> np.ndarray:
    """Returns what `apply_changes` makes the new bytes of, with the old ones: uint8[N].

    Args:
        old: uint8[B].
        new: uint8[B].
        dtype: Of the tensor; elements of it are compared, not bytes.
        codec: Of what is sent.
    """
    width = DTYPE_BYTES[dtype]
    word = _WORDS[width]
    out = [_HEAD.pack(codec.code, width, new.size)]
    for start in range(0, new.size, PIECE_BYTES):
        difference = old[start : start + PIECE_BYTES].view(word) ^ new[start : start + PIECE_BYTES].view(word)
        changed = difference != 0
        if not changed.any():
            continue
        # Bytes of equal significance side by side: most of them are zero or nearly so.
        planes = difference[changed].view(np.uint8).reshape(-1, width).T
        mask = codec.compressed(np.packbits(changed))
        values = codec.compressed(np.ascontiguousarray(planes))
        out += [_PIECE.pack(start, len(mask), len(values)), mask, values]
    return np.frombuffer(b"".join(out), np.uint8)


def apply_changes(changes: np.ndarray, target: np.ndarray, *, name: str) -> None:
    """Turns the old bytes of a tensor into the new ones, in place.

    Args:
        changes: Of `changes_between`.
        target: uint8[B], the old bytes.
        name: Of the tensor, for messages.

    Raises:
        WeightMismatch: The changes are damaged or of a tensor of another size; `target` is then undefined.
        SyncError: They need a library that is missing.
    """
    try:
        code, width, size = _HEAD.unpack_from(changes.data)
        if size != target.size:
            raise WeightMismatch(f"delta: tensor {name!r}: changes of {size} bytes for {target.size}")
        decompress, word, at = _decompressor(code), _WORDS[width], _HEAD.size
        while at < changes.size:
            start, mask_bytes, value_bytes = _PIECE.unpack_from(changes.data, at)
            at += _PIECE.size
            mask = decompress(changes[at : at + mask_bytes].tobytes())
            at += mask_bytes
            values = decompress(changes[at : at + value_bytes].tobytes())
            at += value_bytes
            piece = target[start : start + PIECE_BYTES].view(word)
            changed = np.unpackbits(np.frombuffer(mask, np.uint8), count=piece.size).astype(bool)
            planes = np.frombuffer(values, np.uint8).reshape(width, -1)
            piece[changed] ^= np.ascontiguousarray(planes.T).reshape(-1).view(word)
    except (struct.error, zlib.error, ValueError, KeyError, IndexError) as error:
        raise WeightMismatch(f"delta: the changes of tensor {name!r} are damaged: {error}") from error


def _decompressor(code: int) -> Callable[[bytes], bytes]:
    if code == 0:
        return bytes
    if code == 1:
        return zlib.decompress
    library: Any = _zstd()
    if library is None:
        install = "pip install 'roll-rollout[zstd]'"
        raise SyncError(f"delta: compressed with zstd, which is missing here ({install})")

    def decompress(data: bytes) -> bytes:
        try:
            if library.__name__ == "zstandard":
                return bytes(library.ZstdDecompressor().decompress(data))
            return bytes(library.decompress(data))
        except library.ZstdError as error:
            raise ValueError(str(error)) from error

    return decompress


def _zstd() -> object | None:
    for name in _ZSTD:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
