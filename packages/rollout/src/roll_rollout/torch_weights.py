"""Weight updates from torch tensors. Trainers import it; the package itself does without torch."""

from collections.abc import Iterable, Iterator

import torch

from roll_rollout.weights import TensorBytes, WeightUpdate, pack_buckets

BUCKET_BYTES = 256 * 1024 * 1024


def tensor_bytes(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[TensorBytes]:
    """Yields the bytes of each tensor, one tensor at a time: what a `Sender` publishes.

    Tensors in host memory are not copied: the bytes are views of them. What the iterator gives is taken one
    at a time, so that a learner that gathers its shards tensor by tensor never holds two of them.

    Args:
        tensors: Hugging Face names and tensors, tied ones once, for example `learner.export_weights()`.
    """
    for name, tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat


def weight_update(
    tensors: Iterable[tuple[str, torch.Tensor]], *, version: int, max_bytes: int = BUCKET_BYTES
) -> WeightUpdate:
    """An update that brings `tensors` to an engine.

    Args:
        tensors: As of `tensor_bytes`.
        version: Policy version of these weights.
        max_bytes: Most bytes in one bucket.

    Raises:
        WeightMismatch: A dtype that no engine takes.
    """
    buckets = pack_buckets(tensor_bytes(tensors), max_bytes=max_bytes)
    return WeightUpdate(version=version, buckets=tuple(buckets))
