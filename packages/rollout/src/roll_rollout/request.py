"""What an engine is asked for: one completion of one prompt."""

from dataclasses import dataclass

import numpy as np

from roll_rollout.errors import EngineError
from roll_rollout.sampling import SamplingParams

_SEED_LIMIT = 2**64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """One completion to sample, for example

        GenerateRequest(id="7/0", prompt_ids=np.array([5, 9, 4]), seed=11,
                        sampling=SamplingParams(max_tokens=8))

    Requests are compared by identity. Those with equal `prompt_ids` form a group without being told so:
    an engine may compute the prompt once for all of them.

    Attributes:
        id: Names the request in `abort` and in the completion; unique among the requests in flight.
        prompt_ids: int32[P], P of at least 1; any integer array is accepted and converted.
        seed: In [0, 2**64). Alone decides the random numbers of the completion.
        sampling: How its tokens are drawn.

    Raises:
        EngineError: The prompt is not a 1-D array of token ids, or the seed is out of range.
    """

    id: str
    prompt_ids: np.ndarray
    seed: int
    sampling: SamplingParams

    def __post_init__(self) -> None:
        ids = np.asarray(self.prompt_ids)
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise EngineError(
                f"request {self.id!r}: prompt_ids is {ids.dtype}{list(ids.shape)}, "
                "allowed is a 1-D array of at least one integer"
            )
        if ids.min() < 0 or ids.max() >= 2**31:
            got = f"{ids.min()} to {ids.max()}"
            raise EngineError(f"request {self.id!r}: prompt_ids are {got}, allowed is [0, 2**31)")
        if not 0 <= self.seed < _SEED_LIMIT:
            raise EngineError(f"request {self.id!r}: seed is {self.seed}, allowed is [0, 2**64)")
        object.__setattr__(self, "prompt_ids", np.ascontiguousarray(ids, dtype=np.int32))
