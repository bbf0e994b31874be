"""Weights as Hugging Face files: which tensors a directory holds, and the files that an engine reloads.

The safetensors format is a length, a JSON header and the bytes of the tensors, so that a payload goes to a
file as it is.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.errors import EngineError, WeightMismatch
from roll_rollout.weights import TensorBytes, TensorSpec, WeightUpdate, verify_update

_FLOATS = ("bfloat16", "float16", "float32", "float64")
_DTYPE_OF = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "I8": "int8",
    "U8": "uint8",
}
_NAME_OF = {name: code for code, name in _DTYPE_OF.items()}
_TIED = ("model.embed_tokens.weight", "lm_head.weight")


def directory_specs(directory: Path, *, dtype: str) -> list[TensorSpec]:
    """Returns one spec for each tensor of a model directory, with floats as an engine in `dtype` takes them.

    Where the configuration ties input and output embeddings, their one tensor goes by both names.

    Args:
        directory: Has `config.json` and `*.safetensors`.
        dtype: Key of `DTYPE_BYTES`.

    Raises:
        EngineError: The directory lacks one of them.
    """
    files = sorted(directory.glob("*.safetensors"))
    config = directory / "config.json"
    if not files or not config.is_file():
        raise EngineError(f"model directory {str(directory)!r}: needs config.json and *.safetensors")
    settings = json.loads(config.read_text(encoding="utf-8"))
    tied = bool(
        settings.get("tie_word_embeddings", settings.get("text_config", {}).get("tie_word_embeddings"))
    )
    headers = {name: entry for file in files for name, entry in _header(file).items()}
    specs = []
    for name, entry in sorted(headers.items()):
        kind = _DTYPE_OF.get(entry["dtype"], entry["dtype"])
        names: tuple[str, ...] = (name,)
        if tied and name in _TIED:
            if name == _TIED[1] and _TIED[0] in headers:
                continue
            names = (name, *(each for each in _TIED if each != name))
        specs.append(
            TensorSpec(
                names=names, dtype=dtype if kind in _FLOATS else kind, shape=tuple(map(int, entry["shape"]))
            )
        )
    return specs


def write_update(update: WeightUpdate, specs: list[TensorSpec], directory: Path) -> None:
    """Writes an update as a model directory's safetensors, if it fits.

    Raises:
        WeightMismatch: It does not; nothing was written.
    """
    verify_update(update, specs)
    name_of = {alias: spec.names[0] for spec in specs for alias in spec.names}
    for index, bucket in enumerate(update.buckets):
        file = directory / f"model-{index + 1:05d}-of-{len(update.buckets):05d}.safetensors"
        tensors = [(name_of[name], kind, shape, data) for name, kind, shape, data in bucket.tensors()]
        write_safetensors(tensors, file)


def write_adapter(update: AdapterUpdate, specs: list[TensorSpec], directory: Path) -> None:
    """Writes an adapter as a PEFT directory, if it fits the model.

    Raises:
        WeightMismatch: A tensor belongs to no target, is missing or of another shape; nothing was written.
    """
    _check_adapter(update, specs)
    tensors = [tensor for bucket in update.buckets for tensor in bucket.tensors()]
    write_safetensors(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(update.config.peft_json(), encoding="utf-8")


def write_safetensors(tensors: Sequence[TensorBytes], file: Path) -> int:
    """Writes a safetensors file, and returns the offset in it from which the tensors lie back to back."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape, payload in tensors:
        start, end = end, end + payload.size
        header[name] = {"dtype": _NAME_OF[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)))
        stream.write(text)
        for *_, payload in tensors:
            stream.write(np.ascontiguousarray(payload).data)
    return 8 + len(text)


def _check_adapter(update: AdapterUpdate, specs: list[TensorSpec]) -> None:
    where, config = f"adapter {update.name!r}, version {update.version}", update.config
    needed: dict[str, tuple[int, ...]] = {}
    for spec in specs:
        module = spec.names[0].removesuffix(".weight")
        if len(spec.shape) == 2 and module.rsplit(".", 1)[-1] in config.target_modules:
            needed[f"base_model.model.{module}.lora_A.weight"] = (config.rank, spec.shape[1])
            needed[f"base_model.model.{module}.lora_B.weight"] = (spec.shape[0], config.rank)
    if not needed:
        raise WeightMismatch(f"{where}: target_modules {list(config.target_modules)} are not in the model")
    arrived = {
        name: shape
        for bucket in update.buckets
        for name, shape in zip(bucket.names, bucket.shapes, strict=True)
    }
    for name, shape in arrived.items():
        if name not in needed:
            raise WeightMismatch(f"{where}: tensor {name!r} is unknown to the model")
        if shape != needed[name]:
            raise WeightMismatch(f"{where}: tensor {name!r} is {list(shape)}, needed is {list(needed[name])}")
    missing = sorted(needed.keys() - arrived.keys())
    if missing:
        raise WeightMismatch(f"{where}: tensor {missing[0]!r} is missing ({len(missing)} are)")


def _header(file: Path) -> dict[str, dict[str, Any]]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, dict[str, Any]] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header
