"""Updates made of torch tensors carry their exact bytes."""

import numpy as np
import pytest
import torch
from roll_rollout import WeightMismatch, weights_checksum
from roll_rollout.torch_weights import weight_update


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_of_a_tensor_arrive_whatever_its_strides(dtype: torch.dtype) -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).to(dtype).T
    update = weight_update([("w", tensor)], version=3)
    (name, dtype_name, shape, payload), = update.buckets[0].tensors()  # fmt: skip
    assert (update.version, name, f"torch.{dtype_name}", shape) == (3, "w", str(dtype), (4, 3))
    again = torch.from_numpy(payload.copy()).view(dtype).reshape(shape)
    assert torch.equal(again, tensor)


def test_small_buckets_carry_the_same_update() -> None:
    tensors = [(f"w{i}", torch.randn(5, generator=torch.Generator().manual_seed(i))) for i in range(4)]
    one, many = weight_update(tensors, version=1), weight_update(tensors, version=1, max_bytes=24)
    assert (len(one.buckets), len(many.buckets)) == (1, 4)
    assert weights_checksum(one.buckets) == weights_checksum(many.buckets)


def test_scalars_and_empty_tensors_are_carried() -> None:
    update = weight_update([("scale", torch.tensor(2.5)), ("none", torch.zeros(0))], version=0)
    sizes = {name: np.asarray(payload).size for name, _, _, payload in update.buckets[0].tensors()}
    assert sizes == {"scale": 4, "none": 0}


def test_a_dtype_that_no_engine_takes_is_named() -> None:
    with pytest.raises(WeightMismatch, match="complex64"):
        weight_update([("w", torch.zeros(2, dtype=torch.complex64))], version=0)
