"""The weights of a Hugging Face model as an engine receives them: which tensors, and the write."""

import numpy as np
import torch
from transformers import PreTrainedModel

from roll_rollout.weights import TensorSpec, WeightUpdate


def tensor_specs(model: PreTrainedModel) -> list[TensorSpec]:
    """Returns one spec a distinct tensor of the state dict; tied weights share one, with all their names."""
    names: dict[tuple[int, torch.Size, tuple[int, ...]], list[str]] = {}
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        names.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), []).append(name)
    return [
        TensorSpec(
            names=tuple(group),
            dtype=str(tensors[group[0]].dtype).removeprefix("torch."),
            shape=tuple(tensors[group[0]].shape),
        )
        for group in names.values()
    ]


def load_update(model: PreTrainedModel, update: WeightUpdate) -> None:
    """Copies a verified update into the model's tensors, in place."""
    tensors = model.state_dict()
    with torch.no_grad():
        for bucket in update.buckets:
            for name, _, shape, payload in bucket.tensors():
                target = tensors[name]
                # Through a copy of one tensor: a payload may be read-only and need not be aligned.
                source = torch.from_numpy(np.array(payload)).view(target.dtype).reshape(shape)
                target.copy_(source)
