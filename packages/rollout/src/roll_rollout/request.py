"""What an engine is asked for: one completion of one prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roll_rollout.completion import Completion
from roll_rollout.errors import EngineError
from roll_rollout.media import Media
from roll_rollout.sampling import SamplingParams

_SEED_LIMIT = 2**64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """One completion to sample, for example

        GenerateRequest(id="7/0", prompt_ids=np.array([5, 9, 4]), seed=11,
                        sampling=SamplingParams(max_tokens=8))

    Requests are compared by identity. Those with equal `prompt_ids` form a group without being told so:
    an engine may compute the prompt once for all of them. `members` makes a group of one request.

    Attributes:
        id: Names the request in `abort` and in the completion; unique among the requests in flight.
        prompt_ids: int32[P], P of at least 1; any integer array is accepted and converted.
        seed: In [0, 2**64). Alone decides the random numbers of the completion.
        sampling: How its tokens are drawn.
        partial: A completion of this prompt and seed that was aborted, to go on from. Its tokens keep
            their log-probs and versions, count towards `max_tokens`, and come back at the front.
        adapter: Name of a loaded LoRA adapter; None for the weights as they are.
        media: What the placeholder tokens of the prompt stand for, in their order.
        routed_experts: Whether the completion should tell which experts its tokens went to.
        context_ids: int32[P + tokens of `partial`]; what the model reads before it draws a token.

    Raises:
        EngineError: The prompt is not a 1-D array of token ids, the seed is out of range, or `partial` is
            of another prompt or seed, or was not aborted.
    """

    id: str
    prompt_ids: np.ndarray
    seed: int
    sampling: SamplingParams
    partial: Completion | None = None
    adapter: str | None = None
    media: tuple[Media, ...] = ()
    routed_experts: bool = False
    context_ids: np.ndarray = field(init=False)

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
        context = self.prompt_ids
        if self.partial is not None:
            self._check_partial(self.partial)
            context = np.concatenate([context, self.partial.token_ids])
        object.__setattr__(self, "context_ids", context)

    def members(self, seeds: Sequence[int]) -> list["GenerateRequest"]:
        """Returns a group: one request a seed, with ids that end in "#0", "#1" and so on."""
        return [
            replace(self, id=f"{self.id}#{index}", seed=seed, partial=None)
            for index, seed in enumerate(seeds)
        ]

    def resumed(self, partial: Completion) -> "GenerateRequest":
        """Returns the request that goes on from a completion of this one that was aborted."""
        return replace(self, partial=partial)

    def _check_partial(self, partial: Completion) -> None:
        where = f"request {self.id!r}: partial"
        if not np.array_equal(partial.prompt_ids, self.prompt_ids):
            raise EngineError(f"{where} is of another prompt")
        if partial.seed != self.seed:
            raise EngineError(f"{where} has seed {partial.seed}, allowed is that of the request, {self.seed}")
        if partial.finish_reason != "abort":
            raise EngineError(f"{where} ended with {partial.finish_reason!r}, allowed is 'abort'")
        if not partial.exact:
            raise EngineError(
                f"{where} holds ids that were not sampled; there is nothing exact to go on from"
            )
