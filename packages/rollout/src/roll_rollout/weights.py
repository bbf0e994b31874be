"""Weights on their way into an engine: buckets of bytes, their checksum, and the check at the receiver.

A learner packs its tensors with `pack_buckets`; an engine calls `verify_update` before it writes
anything and answers with a `WeightReceipt`. All of it is numpy and the standard library, so that a
transport needs no tensor library.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roll_rollout.errors import WeightMismatch
from roll_rollout.weight_digest import checksum_of, digests_of, preferred_algorithm

DTYPE_BYTES = {
    "bfloat16": 2,
    "bool": 1,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
}
"""Bytes of one element, by dtype name."""

TensorBytes = tuple[str, str, tuple[int, ...], np.ndarray]
"""Name, dtype name, shape, and the contents as uint8[number of bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightBucket:
    """Some whole tensors, back to back, for example

        WeightBucket(names=("norm.weight",), dtypes=("float32",), shapes=((128,),), payload=<512 bytes>)

    Attributes:
        names: Hugging Face parameter names.
        dtypes: Keys of `DTYPE_BYTES`, one a tensor.
        shapes: One a tensor.
        payload: uint8[N]: the tensors in row-major order, in the order of `names`, without gaps.

    Raises:
        WeightMismatch: The payload is not as long as its tensors, or a dtype is unknown.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    payload: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            lengths = f"{len(self.names)} names, {len(self.dtypes)} dtypes, {len(self.shapes)} shapes"
            raise WeightMismatch(f"weight bucket: {lengths}, allowed is one of each a tensor")
        if self.payload.dtype != np.uint8 or self.payload.ndim != 1:
            got = f"{self.payload.dtype}{list(self.payload.shape)}"
            raise WeightMismatch(f"weight bucket: payload is {got}, allowed is a 1-D uint8 array")
        size = sum(map(_tensor_bytes, self.names, self.dtypes, self.shapes))
        if size != self.payload.size:
            needed = f"its {len(self.names)} tensors need {size}"
            raise WeightMismatch(f"weight bucket: payload has {self.payload.size} bytes, {needed}")

    def tensors(self) -> Iterator[TensorBytes]:
        """Yields each tensor with a view of its bytes."""
        offset = 0
        for name, dtype, shape in zip(self.names, self.dtypes, self.shapes, strict=True):
            size = _tensor_bytes(name, dtype, shape)
            yield name, dtype, shape, self.payload[offset : offset + size]
            offset += size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightUpdate:
    """All weights of one policy version, for example `WeightUpdate(version=3, buckets=(first, second))`.

    Attributes:
        version: Policy version.
        buckets: All tensors.
        expected: Digest of each tensor by name, as its publisher computed it; without any, whoever loads the
            update has nothing to compare with but the receipt.
        algorithm: Of the digests, as in `roll_rollout.weight_digest`.
        lent: Nobody writes to the payloads while weights of this version are served, so that a receiver may
            keep them as its tensors instead of copying them.
    """

    version: int
    buckets: tuple[WeightBucket, ...]
    expected: Mapping[str, bytes] = field(default_factory=dict)
    algorithm: str = field(default_factory=preferred_algorithm)
    lent: bool = False

    def tensors(self) -> Iterator[TensorBytes]:
        """Yields every tensor with a view of its bytes."""
        for bucket in self.buckets:
            yield from bucket.tensors()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReceipt:
    """What an engine loaded, for example `WeightReceipt(version=3, checksum="xxh3-128:9f86d0...")`.

    Attributes:
        version: The version that samples from now on.
        checksum: `weights_checksum` of the bytes that arrived.
    """

    version: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor that a model takes, for example

        TensorSpec(names=("model.embed_tokens.weight", "lm_head.weight"), dtype="float32", shape=(25, 128))

    Attributes:
        names: Its name; with tied weights all of its names, of which an update uses one.
        dtype: Key of `DTYPE_BYTES`.
        shape: Sizes.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]


def pack_buckets(tensors: Iterable[TensorBytes], *, max_bytes: int) -> Iterator[WeightBucket]:
    """Yields buckets that hold the tensors in order, whole, each of at most `max_bytes`.

    A tensor larger than `max_bytes` is alone in its bucket. Tensors are taken one at a time, so at most
    one bucket is in memory besides them.

    Args:
        tensors: Name, dtype name, shape and uint8 bytes of each.
        max_bytes: Upper limit of a payload, at least 1.

    Raises:
        WeightMismatch: A tensor's bytes do not match its dtype and shape, or `max_bytes` is below 1.
    """
    if max_bytes < 1:
        raise WeightMismatch(f"pack_buckets: max_bytes is {max_bytes}, allowed is 1 or more")
    pending: list[TensorBytes] = []
    size = 0
    for tensor in tensors:
        if pending and size + tensor[3].size > max_bytes:
            yield _bucket(pending)
            pending, size = [], 0
        pending.append(tensor)
        size += tensor[3].size
    if pending:
        yield _bucket(pending)


def weights_checksum(buckets: Sequence[WeightBucket], *, algorithm: str | None = None) -> str:
    """Returns the checksum of names, dtypes, shapes and bytes of all tensors, with the algorithm before it.

    It depends neither on the order of the tensors nor on how they are split into buckets.

    Args:
        buckets: Of an update.
        algorithm: As in `roll_rollout.weight_digest`; by default the preferred one.

    Raises:
        WeightMismatch: The algorithm is unknown.
    """
    algorithm = algorithm or preferred_algorithm()
    digests = digests_of((tensor for bucket in buckets for tensor in bucket.tensors()), algorithm)
    return checksum_of(digests, algorithm)


def checked_checksum(update: WeightUpdate) -> str:
    """Returns the checksum of the bytes that are there, once each tensor is known to be what was published.

    Raises:
        WeightMismatch: Names a tensor whose bytes are not those that its publisher hashed, or that is not
            among what was published.
    """
    digests = digests_of(update.tensors(), update.algorithm)
    if update.expected:
        where = f"weight update to version {update.version}"
        for name, digest in digests.items():
            expected = update.expected.get(name)
            if expected is None:
                raise WeightMismatch(f"{where}: tensor {name!r} was not published")
            if digest != expected:
                got = f"{update.algorithm} {digest.hex()}, published was {expected.hex()}"
                raise WeightMismatch(f"{where}: tensor {name!r} arrived with other bytes: {got}")
        lost = sorted(update.expected.keys() - digests.keys())
        if lost:
            raise WeightMismatch(f"{where}: tensor {lost[0]!r} did not arrive ({len(lost)} did not)")
    return checksum_of(digests, update.algorithm)


def verify_update(update: WeightUpdate, specs: Sequence[TensorSpec]) -> None:
    """Checks that an update brings every tensor of a model exactly once, in its dtype and shape, unharmed.

    Raises:
        WeightMismatch: Names the first tensor that is unknown, duplicated, of another dtype or shape,
            missing, or of other bytes than its publisher hashed.
    """
    check_fit(update, specs)
    if update.expected:
        checked_checksum(update)


def check_fit(update: WeightUpdate, specs: Sequence[TensorSpec]) -> None:
    """Checks names, dtypes and shapes alone; `checked_checksum` looks at the bytes.

    Raises:
        WeightMismatch: Names the first tensor that is unknown, duplicated, of another dtype or shape,
            or missing.
    """
    where = f"weight update to version {update.version}"
    spec_of = {name: spec for spec in specs for name in spec.names}
    came_as: dict[TensorSpec, str] = {}
    for bucket in update.buckets:
        for name, dtype, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
            spec = spec_of.get(name)
            if spec is None:
                raise WeightMismatch(f"{where}: tensor {name!r} is unknown to the model")
            if spec in came_as:
                raise WeightMismatch(f"{where}: tensor {name!r} is duplicated, after {came_as[spec]!r}")
            if (dtype, shape) != (spec.dtype, spec.shape):
                got, needed = f"{dtype}{list(shape)}", f"{spec.dtype}{list(spec.shape)}"
                raise WeightMismatch(f"{where}: tensor {name!r} is {got}, the model has {needed}")
            came_as[spec] = name
    missing = [spec.names[0] for spec in specs if spec not in came_as]
    if missing:
        count = f"{len(missing)} of {len(specs)}"
        raise WeightMismatch(f"{where}: tensor {missing[0]!r} is missing ({count} are)")


def _bucket(tensors: Sequence[TensorBytes]) -> WeightBucket:
    for name, dtype, shape, payload in tensors:
        if payload.size != _tensor_bytes(name, dtype, shape):
            raise WeightMismatch(
                f"tensor {name!r}: {payload.size} bytes for {dtype}{list(shape)}, "
                f"which needs {_tensor_bytes(name, dtype, shape)}"
            )
    names, dtypes, shapes, payloads = zip(*tensors, strict=True)
    payload = payloads[0] if len(payloads) == 1 else np.concatenate(payloads)
    return WeightBucket(names=names, dtypes=dtypes, shapes=shapes, payload=payload)


def _tensor_bytes(name: str, dtype: str, shape: tuple[int, ...]) -> int:
    if dtype not in DTYPE_BYTES:
        raise WeightMismatch(f"tensor {name!r}: dtype is {dtype!r}, allowed is one of {sorted(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype] * math.prod(shape)
