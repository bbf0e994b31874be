"""The weights of a Hugging Face model as an engine receives, drops and restores them."""

from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from roll_rollout.weights import TensorSpec, WeightUpdate, verify_update


class ModelWeights:
    """The tensors of a model's state dict, by the names that they have when the engine starts.

    Adapters rename modules later on; the tensors stay the same objects.

    Args:
        model: Of the engine.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        self._tensors: Mapping[str, torch.Tensor] = model.state_dict(keep_vars=True)
        self._specs = _tensor_specs(self._tensors)
        self._dropped: dict[str, torch.Size] = {}

    def load(self, update: WeightUpdate) -> None:
        """Copies an update into the tensors, in place, if it fits.

        Raises:
            WeightMismatch: It does not, and nothing was written.
        """
        verify_update(update, self._specs)
        with torch.no_grad():
            for bucket in update.buckets:
                for name, _, shape, payload in bucket.tensors():
                    target = self._tensors[name].detach()
                    # Through a copy of one tensor: a payload may be read-only and need not be aligned.
                    source = torch.from_numpy(np.array(payload)).view(target.dtype).reshape(shape)
                    target.copy_(source)

    def offload(self) -> None:
        """Moves the model to host memory."""
        self._model.to("cpu")  # type: ignore[arg-type] # its decorator hides the signature

    def drop(self) -> None:
        """Frees the tensors that updates bring; buffers that they do not bring stay."""
        self._dropped = {name: tensor.shape for name, tensor in self._tensors.items()}
        for tensor in self._tensors.values():
            tensor.data = tensor.data.new_empty(0)
        self.offload()

    def restore(self) -> None:
        """Takes the memory back on the device where the model was. Dropped tensors hold no weights yet."""
        dropped, self._dropped = self._dropped, {}
        self._model.to(self._device)  # type: ignore[arg-type] # its decorator hides the signature
        for name, shape in dropped.items():
            tensor = self._tensors[name]
            if tensor.shape != shape:
                tensor.data = tensor.data.new_zeros(shape)


def _tensor_specs(tensors: Mapping[str, torch.Tensor]) -> list[TensorSpec]:
    """Returns one spec a distinct tensor; tied weights share one, with all their names."""
    names: dict[tuple[int, torch.Size, tuple[int, ...]], list[str]] = {}
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
