"""What a prompt shows besides tokens: images, videos and sounds, for engines of multimodal models."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll_rollout.errors import EngineError

MediaKind = Literal["image", "video", "audio"]

_LAYOUT = {
    "image": (np.uint8, 3, "uint8[height, width, 3]"),
    "video": (np.uint8, 4, "uint8[frames, height, width, 3]"),
    "audio": (np.float32, 1, "float32[samples]"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Media:
    """One image, video or sound of a prompt, for example

        Media(kind="image", data=np.zeros((224, 224, 3), np.uint8))

    The prompt holds one placeholder token for it, where the model's chat template puts one; the engine
    expands it. Compared by identity.

    Attributes:
        kind: "image", "video" or "audio".
        data: uint8[height, width, 3], uint8[frames, height, width, 3], or float32[samples] in [-1, 1].
        sampling_rate: Samples a second of a sound; None for the others.

    Raises:
        EngineError: The array is not laid out as its kind needs it.
    """

    kind: MediaKind
    data: np.ndarray
    sampling_rate: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in _LAYOUT:
            raise EngineError(f"Media.kind: got {self.kind!r}, allowed is one of {sorted(_LAYOUT)}")
        dtype, dimensions, layout = _LAYOUT[self.kind]
        fits = self.data.dtype == dtype and self.data.ndim == dimensions and self.data.size > 0
        if not fits or (self.kind != "audio" and self.data.shape[-1] != 3):
            got = f"{self.data.dtype}{list(self.data.shape)}"
            raise EngineError(f"Media.data of a {self.kind}: got {got}, allowed is {layout}")
        if (self.sampling_rate is not None) != (self.kind == "audio") or self.sampling_rate == 0:
            allowed = "samples a second for audio, None for others"
            raise EngineError(f"Media.sampling_rate: got {self.sampling_rate}, allowed is {allowed}")
