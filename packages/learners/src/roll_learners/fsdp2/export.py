"""Whole tensors, one after the other, under the names of a Hugging Face checkpoint, and files of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

FILE_BYTES = 5 * 1000**3
"""Most bytes of weights in one file, as transformers divides them."""

INDEX = "model.safetensors.index.json"


def hugging_face_names(
    model: PreTrainedModel, tensors: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors under the names of a checkpoint, where transformers loads a family under others.

    Experts, for one, are a matrix each in a checkpoint and one tensor for all in a model.

    Args:
        model: Whose they are.
        tensors: By the names of its state dict; those of a layer come together.
    """
    layer: str | None = None
    held: dict[str, Tensor] = {}
    for name, tensor in tensors:
        mine = _layer(name)
        if held and (mine is None or mine != layer):
            yield from revert_weight_conversion(model, held).items()
            held = {}
        layer = mine
        held[name] = tensor
    if held:
        yield from revert_weight_conversion(model, held).items()


def write_hugging_face(
    model: PreTrainedModel,
    tensors: Iterable[tuple[str, Tensor]],
    directory: Path,
    *,
    write: bool,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Writes config, generation config and safetensors, holding one file's tensors at a time.

    Args:
        model: Its configuration is written.
        tensors: By the names of a checkpoint.
        directory: Made if it is not there.
        write: Of ranks that only help to gather, False.
        file_bytes: Most bytes of tensors in one file, unless a tensor alone has more.
    """
    shards = _Shards(directory)
    for name, tensor in tensors:
        if write:
            if shards.bytes and shards.bytes + tensor.nbytes > file_bytes:
                shards.flush()
            shards.add(name, tensor)
    if not write:
        return
    shards.close()
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)


class _Shards:
    """Files of weights; what they are called shows how many there are, so they get their names last."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tensors: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self._total = 0
        self.bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        self._tensors[name] = tensor.detach().cpu().contiguous().clone()
        self.bytes += tensor.nbytes

    def flush(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        save_file(self._tensors, self._written(len(self._files)), metadata={"format": "pt"})
        self._files.append(list(self._tensors))
        self._total += self.bytes
        self._tensors, self.bytes = {}, 0

    def close(self) -> None:
        self.flush()
        if len(self._files) == 1:
            self._written(0).rename(self._directory / "model.safetensors")
            return
        index: dict[str, str] = {}
        for number, names in enumerate(self._files):
            file = f"model-{number + 1:05d}-of-{len(self._files):05d}.safetensors"
            self._written(number).rename(self._directory / file)
            index |= dict.fromkeys(names, file)
        described = {"metadata": {"total_size": self._total}, "weight_map": index}
        (self._directory / INDEX).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")

    def _written(self, number: int) -> Path:
        return self._directory / f"weights-{number}.part"


def _layer(name: str) -> str | None:
    """The prefix that tensors of one decoder layer have in common, or None of others."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return None if number is None else ".".join(parts[: number + 1])
