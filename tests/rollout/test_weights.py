"""Weight buckets hold whole tensors, their checksum ignores the split, and updates are checked strictly."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_rollout import (
    TensorSpec,
    WeightBucket,
    WeightMismatch,
    WeightUpdate,
    pack_buckets,
    verify_update,
    weights_checksum,
)


def tensor(name: str, shape: tuple[int, ...], fill: int = 0):
    values = (np.arange(np.prod(shape, dtype=int)) + fill).astype(np.float32)
    return name, "float32", shape, values.view(np.uint8)


TENSORS = [tensor("a", (2, 3)), tensor("b", (5,), 10), tensor("c", (), 20), tensor("d", (4, 4), 30)]
SPECS = [TensorSpec(names=(name,), dtype=dtype, shape=shape) for name, dtype, shape, _ in TENSORS]


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=12),
    max_bytes=st.integers(1, 200),
)
def test_packing_keeps_order_and_bytes_and_respects_the_limit(shapes, max_bytes):
    tensors = [tensor(f"t{index}", shape, 7 * index) for index, shape in enumerate(shapes)]
    buckets = list(pack_buckets(tensors, max_bytes=max_bytes))
    unpacked = [each for bucket in buckets for each in bucket.tensors()]
    assert [each[:3] for each in unpacked] == [each[:3] for each in tensors]
    assert all(np.array_equal(got[3], put[3]) for got, put in zip(unpacked, tensors, strict=True))
    assert all(bucket.payload.size <= max_bytes or len(bucket.names) == 1 for bucket in buckets)


def test_neighbouring_buckets_would_not_fit_into_one():
    buckets = list(pack_buckets(TENSORS, max_bytes=44))
    assert [bucket.names for bucket in buckets] == [("a", "b"), ("c",), ("d",)]


@given(order=st.permutations(TENSORS), max_bytes=st.integers(1, 200))
def test_checksum_depends_neither_on_order_nor_on_split(order, max_bytes):
    whole = weights_checksum(list(pack_buckets(TENSORS, max_bytes=1000)))
    assert weights_checksum(list(pack_buckets(order, max_bytes=max_bytes))) == whole


@pytest.mark.parametrize(
    "other",
    [
        [tensor("a", (3, 2)), *TENSORS[1:]],
        [("a", "int32", (2, 3), TENSORS[0][3]), *TENSORS[1:]],
        [tensor("z", (2, 3)), *TENSORS[1:]],
        [tensor("a", (2, 3), 1), *TENSORS[1:]],
        TENSORS[:-1],
    ],
    ids=["shape", "dtype", "name", "bytes", "missing"],
)
def test_checksum_depends_on(other):
    first, second = (weights_checksum(list(pack_buckets(each, max_bytes=64))) for each in (TENSORS, other))
    assert first != second


def test_checksum_of_swapped_contents_differs():
    one, two = tensor("a", (4,), 1), tensor("b", (4,), 2)
    swapped = [("a", *two[1:]), ("b", *one[1:])]
    checksums = {weights_checksum(list(pack_buckets(each, max_bytes=64))) for each in ([one, two], swapped)}
    assert len(checksums) == 2


def update(*tensors) -> WeightUpdate:
    return WeightUpdate(version=3, buckets=tuple(pack_buckets(tensors, max_bytes=30)))


def test_complete_update_is_accepted_in_any_order():
    verify_update(update(*reversed(TENSORS)), SPECS)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([*TENSORS, tensor("e", (1,))], "'e' is unknown"),
        ([*TENSORS, TENSORS[1]], "'b' is duplicated"),
        ([TENSORS[0], *TENSORS[2:]], "'b' is missing"),
        ([tensor("a", (3, 2)), *TENSORS[1:]], r"'a' is float32\[3, 2\], the model has float32\[2, 3\]"),
        ([("a", "int32", (2, 3), TENSORS[0][3]), *TENSORS[1:]], r"'a' is int32\[2, 3\]"),
    ],
    ids=["unknown", "duplicated", "missing", "shape", "dtype"],
)
def test_update_that_does_not_fit_is_refused_by_tensor(tensors, message):
    with pytest.raises(WeightMismatch, match=f"version 3: tensor {message}"):
        verify_update(update(*tensors), SPECS)


def test_tied_tensor_is_taken_under_any_one_of_its_names_but_only_once():
    specs = [TensorSpec(names=("embed", "head"), dtype="float32", shape=(5,))]
    for name in ("embed", "head"):
        verify_update(update(tensor(name, (5,))), specs)
    with pytest.raises(WeightMismatch, match="'head' is duplicated, after 'embed'"):
        verify_update(update(tensor("embed", (5,)), tensor("head", (5,))), specs)


def test_bucket_refuses_a_payload_of_the_wrong_size_or_an_unknown_dtype():
    fields = {"names": ("a",), "dtypes": ("float32",), "shapes": ((3,),), "payload": np.zeros(12, np.uint8)}
    WeightBucket(**fields)
    for changed, message in (
        ({"payload": np.zeros(11, np.uint8)}, "payload has 11 bytes, its 1 tensors need 12"),
        ({"payload": np.zeros(3, np.float32)}, "payload is float32"),
        ({"dtypes": ("float31",)}, "dtype is 'float31'"),
        ({"shapes": ()}, "0 shapes"),
    ):
        with pytest.raises(WeightMismatch, match=message):
            WeightBucket(**(fields | changed))


def test_packing_refuses_bytes_that_do_not_match_the_shape():
    with pytest.raises(WeightMismatch, match=r"'a': 8 bytes for float32\[3\], which needs 12"):
        list(pack_buckets([("a", "float32", (3,), np.zeros(8, np.uint8))], max_bytes=100))
    with pytest.raises(WeightMismatch, match="max_bytes is 0"):
        list(pack_buckets(TENSORS, max_bytes=0))


def test_buckets_survive_pickling():
    bucket = next(pack_buckets(TENSORS, max_bytes=1000))
    copy = pickle.loads(pickle.dumps(bucket))
    assert weights_checksum([copy]) == weights_checksum([bucket])
