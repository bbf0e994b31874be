"""Images and videos of a sample, as the processor of its model made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roll_learners.errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Media:
    """What the placeholder tokens of a sample stand for.

    Media(inputs={"pixel_values": float32[16, 1176], "image_grid_thw": int64[1, 3]}, token_kinds=int8[N])

    Attributes:
        inputs: Arrays under the names by which the model's forward takes them; those of several samples are
            joined along the first axis. Any mapping, so also one that reads a file when it is asked.
        token_kinds: int8[N], of each token of the sample: 0 text, 1 image, 2 video (the processor's
            `mm_token_type_ids`), from which the model takes the positions of placeholders.
    """

    inputs: Mapping[str, npt.NDArray[np.generic]]
    token_kinds: npt.NDArray[np.int8]

    def __post_init__(self) -> None:
        if self.token_kinds.dtype != np.int8 or self.token_kinds.ndim != 1:
            raise LearnerError(
                f"Media.token_kinds is {self.token_kinds.dtype}{list(self.token_kinds.shape)}, "
                "allowed is int8[N]"
            )
        if not len(self.inputs):
            raise LearnerError("Media.inputs is empty: a sample of text alone has media None")


def joined_inputs(media: list[Media]) -> dict[str, npt.NDArray[np.generic]]:
    """The model's inputs for several samples, in order.

    Raises:
        LearnerError: An input of one sample has another shape, but for its first axis, than that of another.
    """
    names = sorted({name for each in media for name in each.inputs})
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name in names:
        parts = [each.inputs[name] for each in media if name in each.inputs]
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            raise LearnerError(
                f"media {name!r} of different samples has items of shapes {sorted(shapes)}: one is allowed"
            )
        found[name] = np.concatenate(parts)
    return found
