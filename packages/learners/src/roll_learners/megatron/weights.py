"""Where the weights of a Hugging Face model are read from, piece by piece: a directory, or memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import safetensors
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from roll_learners.errors import LearnerError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


class Weights(Protocol):
    """A Hugging Face model's configuration and tensors, under the names of its checkpoint."""

    @property
    def config(self) -> PretrainedConfig:
        """What config.json holds."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor; LearnerError if there is none of this name."""
        ...

    def read(self, name: str, dimension: int, start: int, stop: int) -> Tensor:
        """The piece from start to stop of a tensor's dimension."""
        ...


class DirectoryWeights:
    """The safetensors of a Hugging Face directory; a piece is read without the tensor it belongs to."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        """Args:
        directory: With config.json, and model.safetensors or its index.

        Raises:
            LearnerError: A file is missing.
        """
        self._directory = Path(directory)
        if not (self._directory / "config.json").is_file():
            raise LearnerError(f"megatron: {directory} has no config.json")
        self.config: PretrainedConfig = AutoConfig.from_pretrained(self._directory, local_files_only=True)
        self._files = self._index()
        self._open: dict[str, Any] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """See `Weights`."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, dimension: int, start: int, stop: int) -> Tensor:
        """See `Weights`."""
        piece = self._slice(name)
        read: Tensor = piece[start:stop] if dimension == 0 else piece[:, start:stop]
        return read

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise LearnerError(f"megatron: {self._directory} has no tensor {name!r}")
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safetensors.safe_open(self._directory / file, framework="pt")
        return self._open[file].get_slice(name)

    def _index(self) -> dict[str, str]:
        """The file of each tensor."""
        if (index := self._directory / INDEX).is_file():
            return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        if not (self._directory / SINGLE).is_file():
            raise LearnerError(f"megatron: {self._directory} has neither {SINGLE} nor {INDEX}")
        with safetensors.safe_open(self._directory / SINGLE, framework="pt") as file:
            return dict.fromkeys(file.keys(), SINGLE)


class ModelWeights:
    """A model of transformers in memory. Its fused experts are read under the names of its checkpoint."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Args:
        model: Its tensors are read, never written.
        """
        config: PretrainedConfig = model.config
        self.config = config
        self._tensors: Mapping[str, Tensor] = model.state_dict()

    def shape(self, name: str) -> tuple[int, ...]:
        """See `Weights`."""
        return tuple(self._tensor(name).shape)

    def read(self, name: str, dimension: int, start: int, stop: int) -> Tensor:
        """See `Weights`."""
        return self._tensor(name).narrow(dimension, start, stop - start).detach()

    def _tensor(self, name: str) -> Tensor:
        if name in self._tensors:
            return self._tensors[name]
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if expert is not None:
            prefix, number, part = expert[1], int(expert[2]), expert[3]
            fused = self._tensors.get(f"{prefix}.{'down_proj' if part == 'down' else 'gate_up_proj'}")
            if fused is not None and number < len(fused):
                return fused[number] if part == "down" else fused[number].chunk(2)[part == "up"]
        raise LearnerError(f"megatron: the model has no tensor {name!r}")
