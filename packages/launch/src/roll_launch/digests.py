"""What a stage begins with, as one number: a resume goes on only with the same."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from roll_launch.config import ModelConfig, PretrainedModel

SAMPLED_BLOCK, SAMPLED_BLOCKS = 2**16, 64
"""Bytes of one block, and how many (nearly) are read of each file of a pretrained model."""


def digest(*parts: Iterable[bytes]) -> str:
    """SHA-256, hexadecimal, of parts and where each ends."""
    total = hashlib.sha256()
    for part in itertools.chain(*parts):
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def model_files(model: ModelConfig) -> Iterator[bytes]:
    """The configuration of a pretrained model; name, size and a sample of the bytes of its weights."""
    if isinstance(model, PretrainedModel):
        directory = Path(model.path)
        yield (directory / "config.json").read_bytes()
        for path in sorted(directory.glob("*.safetensors")):
            size = path.stat().st_size
            yield f"{path.name} {size}".encode()
            # Other weights of one shape have one size. Blocks all over the file are read in a moment.
            with path.open("rb") as file:
                for start in range(0, size, max(SAMPLED_BLOCK, size // SAMPLED_BLOCKS)):
                    file.seek(start)
                    yield file.read(SAMPLED_BLOCK)
