"""Digests of weights: what receipts, manifests and transports compare.

The hash is fast and not cryptographic: it finds what broke on the way, not an attacker. A tensor is hashed
leaf by leaf, so that its leaves can be hashed side by side, or while they are in the cache because they were
just copied.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import TracebackType
from typing import Self

import numpy as np

from roll_rollout.errors import WeightMismatch

LEAF_BYTES = 1 << 19
"""Bytes that are hashed at a time; a leaf that was just copied is still in the processor's second cache."""

THREADS = 4
"""Most threads that hash side by side: a few of them saturate a memory controller."""

_Hash = Callable[[bytes | memoryview], bytes]


@cache
def preferred_algorithm() -> str:
    """Returns "xxh3-128", or "blake2b-128" where the package `xxhash` is missing."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return "blake2b-128"
    return "xxh3-128"


def checksum_of(digests: Mapping[str, bytes], algorithm: str) -> str:
    """Returns the checksum of an update, such as "xxh3-128:9f86d0...", from the digests of its tensors.

    Raises:
        WeightMismatch: The algorithm is unknown.
    """
    total = _hash(algorithm)(b"".join(name.encode() + b"\0" + digests[name] for name in sorted(digests)))
    return f"{algorithm}:{total.hex()}"


class Digester:
    """Hashes tensors, several leaves at once; a context manager, because it owns threads.

    Args:
        algorithm: "xxh3-128" or "blake2b-128"; by default the preferred one.
        threads: That hash; by default one a processor, at most `THREADS`.

    Raises:
        WeightMismatch: The algorithm is unknown, or its library is missing here.
    """

    def __init__(self, algorithm: str | None = None, *, threads: int | None = None) -> None:
        self.algorithm = algorithm or preferred_algorithm()
        self._hash = _hash(self.algorithm)
        self._threads = threads or min(THREADS, len(os.sched_getaffinity(0)))
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def digest(self, name: str, dtype: str, shape: tuple[int, ...], payload: np.ndarray) -> bytes:
        """Returns the digest of name, dtype, shape and bytes of a tensor.

        Args:
            name: Of the tensor.
            dtype: Its name.
            shape: Sizes.
            payload: uint8[N].
        """
        data = np.ascontiguousarray(payload)
        return self._rooted(name, dtype, shape, data.size, partial(_hash_leaves, self._hash, data))

    def copy(
        self, name: str, dtype: str, shape: tuple[int, ...], source: np.ndarray, target: np.ndarray
    ) -> bytes:
        """Copies a tensor's bytes and returns the digest of what was written.

        Args:
            name: Of the tensor.
            dtype: Its name.
            shape: Sizes.
            source: uint8[N].
            target: uint8[N], contiguous.
        """
        copied = partial(_copy_leaves, self._hash, source, target)
        return self._rooted(name, dtype, shape, source.size, copied)

    def _rooted(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        size: int,
        leaves: Callable[[int, int], list[bytes]],
    ) -> bytes:
        """The digest of a tensor's description and leaves; `leaves(first, stride)` hashes some of them."""
        count = -(-size // LEAF_BYTES)
        lanes = min(self._threads, count)
        if lanes <= 1:
            hashed = leaves(0, 1)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="roll-digest")
            parts = list(self._pool.map(lambda lane: leaves(lane, lanes), range(lanes)))
            hashed = [parts[index % lanes][index // lanes] for index in range(count)]
        return self._hash(f"{name}\0{dtype}\0{shape}\0{size}\0".encode() + b"".join(hashed))


def digests_of(
    tensors: Iterable[tuple[str, str, tuple[int, ...], np.ndarray]], algorithm: str | None = None
) -> dict[str, bytes]:
    """Returns the digest of every tensor by name.

    Raises:
        WeightMismatch: Two tensors have the same name, or the algorithm is unknown.
    """
    digests: dict[str, bytes] = {}
    with Digester(algorithm) as digester:
        for name, dtype, shape, payload in tensors:
            if name in digests:
                raise WeightMismatch(f"tensor {name!r} is duplicated")
            digests[name] = digester.digest(name, dtype, shape, payload)
    return digests


def _hash_leaves(hash_: _Hash, data: np.ndarray, first: int, stride: int) -> list[bytes]:
    step = stride * LEAF_BYTES
    return [
        hash_(data[start : start + LEAF_BYTES].data) for start in range(first * LEAF_BYTES, data.size, step)
    ]


def _copy_leaves(
    hash_: _Hash, source: np.ndarray, target: np.ndarray, first: int, stride: int
) -> list[bytes]:
    hashed = []
    for start in range(first * LEAF_BYTES, source.size, stride * LEAF_BYTES):
        leaf = target[start : start + LEAF_BYTES]
        np.copyto(leaf, source[start : start + LEAF_BYTES])
        hashed.append(hash_(leaf.data))
    return hashed


def _hash(algorithm: str) -> _Hash:
    if algorithm == "blake2b-128":
        return lambda data: hashlib.blake2b(data, digest_size=16).digest()
    if algorithm != "xxh3-128":
        allowed = "allowed are 'xxh3-128' and 'blake2b-128'"
        raise WeightMismatch(f"checksum algorithm: got {algorithm!r}, {allowed}")
    try:
        from xxhash import xxh3_128_digest
    except ImportError as error:
        raise WeightMismatch("checksum algorithm xxh3-128: the package xxhash is missing here") from error
    return xxh3_128_digest
