"""Weight updates from torch tensors. Trainers import it; the package itself does without torch."""

from collections.abc import Iterable

import numpy as np
import torch

from roll_rollout.weights import WeightUpdate, pack_buckets

BUCKET_BYTES = 256 * 1024 * 1024


def weight_update(
    tensors: Iterable[tuple[str, torch.Tensor]], *, version: int, max_bytes: int = BUCKET_BYTES
) -> WeightUpdate:
    """An update that brings `tensors` to an engine.

    Args:
        tensors: Hugging Face names and tensors, tied ones once, for example `learner.export_weights()`.
        version: Policy version of these weights.
        max_bytes: Most bytes in one bucket.

    Raises:
        WeightMismatch: A dtype that no engine takes.
    """
    packed = (
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _bytes_of(tensor))
        for name, tensor in tensors
    )
    return WeightUpdate(version=version, buckets=tuple(pack_buckets(packed, max_bytes=max_bytes)))


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """uint8[bytes], on the host; a view of a tensor that is there already."""
    flat: np.ndarray = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat
