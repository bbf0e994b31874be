"""The protocol of engines: consumed by the driver of a run, satisfied by every engine of this package."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from roll_rollout.completion import Completion
from roll_rollout.request import GenerateRequest
from roll_rollout.weights import WeightReceipt, WeightUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """How busy an engine is: `EngineLoad(running=64, waiting=12, kv_tokens=9310, sampled_tokens=70512)`.

    Of an engine in another process the numbers may be a few tokens old.

    Attributes:
        running: Requests in the batch.
        waiting: Requests accepted and not yet in the batch.
        kv_tokens: Prompt and sampled tokens held for the running requests.
        sampled_tokens: Tokens sampled since the start; it stands still while nothing runs, or hangs.
        prefilled_tokens: Prompt tokens that went through the model since the start, so without those
            that another request or a cache had computed; None if the engine does not count them.
        kv_capacity: Most `kv_tokens` there is room for; None if it grows.
    """

    running: int
    waiting: int
    kv_tokens: int
    sampled_tokens: int
    prefilled_tokens: int | None = None
    kv_capacity: int | None = None


class Engine(Protocol):
    """Samples completions of prompts with weights that can be replaced while it runs.

    Any number of `generate` calls may be in flight. `roll_rollout.capabilities` has what engines may offer
    besides; `roll_rollout.conformance` checks an implementation.
    """

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. Cancelling the call ends the request.

        Raises:
            SamplingError: The engine cannot honour `request.sampling`.
            PromptTooLong: The prompt leaves no room in the context.
            EngineClosed: The engine is closed, or was while the request ran.
            EngineError: The id is in flight already, the model failed, or the request asks for what the
                engine does not have: an adapter it does not know, media, routed experts, a partial
                completion to go on from.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests: each `generate` call returns the tokens so far with finish reason "abort".

        Returns when they have ended. Ids that are not in flight are ignored.
        """
        ...

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces the weights between two tokens, all or nothing, and drops cached prompts.

        Running requests go on under the new version and keep the tokens they have. Adapters stay.

        Raises:
            WeightMismatch: The update does not fit; weights and version are unchanged.
        """
        ...

    async def load(self) -> EngineLoad:
        """Returns how busy the engine is now."""
        ...

    async def close(self) -> None:
        """Ends all requests with `EngineClosed` and frees the engine. May be called again."""
        ...
