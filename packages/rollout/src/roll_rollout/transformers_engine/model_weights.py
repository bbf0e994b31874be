"""The weights of a Hugging Face model as an engine receives, drops and restores them."""

from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from roll_rollout.weights import TensorSpec, WeightUpdate, check_fit, checked_checksum


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
        self._names_of = {name: spec.names for spec in self._specs for name in spec.names}
        # Tensors whose memory is the publisher's: it may be read, never written.
        self._borrowed: set[str] = set()

    def load(self, update: WeightUpdate) -> str:
        """Brings an update into the tensors if it fits, and returns its checksum.

        What is lent takes the place of a tensor on a CPU; everything else is copied into the tensors.

        Raises:
            WeightMismatch: It does not fit, or bytes are not those that were published; nothing was written.
        """
        check_fit(update, self._specs)
        checksum = checked_checksum(update)
        with torch.no_grad():
            for name, _, _, payload in update.tensors():
                target = self._tensors[name]
                if update.lent and _borrowable(target, payload):
                    self._replace(name, torch.from_numpy(payload).view(target.dtype).reshape(target.shape))
                    self._borrowed.add(name)
                    continue
                if name in self._borrowed:
                    self._replace(name, torch.empty_like(target))
                    self._borrowed.discard(name)
                _copy(payload, target.detach())
        return checksum

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

    def _replace(self, name: str, data: torch.Tensor) -> None:
        """Puts other memory under a tensor and all that are tied to it."""
        for alias in self._names_of[name]:
            self._tensors[alias].data = data


def _borrowable(target: torch.Tensor, payload: np.ndarray) -> bool:
    """Whether the bytes can be a tensor of this kind where they are."""
    aligned = payload.ctypes.data % max(target.element_size(), 1) == 0
    return target.device.type == "cpu" and aligned and payload.flags.writeable and payload.size > 0


def _copy(payload: np.ndarray, target: torch.Tensor) -> None:
    if target.device.type == "cpu" and target.is_contiguous():
        # numpy copies past the cache, at twice the speed of torch's copy.
        np.copyto(target.reshape(-1).view(torch.uint8).numpy(), payload)
        return
    # Through a copy: a payload may be read-only and need not be aligned.
    target.copy_(torch.from_numpy(np.array(payload)).view(target.dtype).reshape(target.shape))


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
