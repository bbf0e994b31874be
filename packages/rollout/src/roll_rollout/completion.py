"""What an engine gives back: the sampled tokens, their log-probs, and the policy versions that drew them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll_rollout.errors import EngineError

FinishReason = Literal["stop", "length", "abort"]
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """The completion of one request, for example one that met a weight sync after its second token:

        Completion(request_id="7/0", prompt_ids=[5, 9, 4], token_ids=[8, 8, 2], logprobs=[-0.1, -1.2, -0.4],
                   versions=((3, 2), (4, 1)), finish_reason="stop", seed=11)

    `len(completion)` is the number of its tokens. Completions are compared by identity.

    Attributes:
        request_id: `GenerateRequest.id`.
        prompt_ids: int32[P], as requested.
        token_ids: int32[T], as sampled. A sampled end token is among them.
        logprobs: float32[T], behavior log-probs: of each token at the time it was drawn, in the
            distribution it was drawn from.
        versions: Pairs (policy version, run length) in token order. A completion without tokens carries
            one run of length 0: the version that would have drawn its first token.
        finish_reason: "stop" (an end token or stop string), "length" (`max_tokens` or the context is
            full) or "abort" (ended early by `Engine.abort`; the tokens so far are kept).
        seed: `GenerateRequest.seed`.
        exact: Whether `token_ids` are the ids that were sampled. False for text that an endpoint gave
            without ids and that was tokenised again: not to be trained on.
        routed_experts: int16[P + T - 1, L, K]: for every token that went through the model, the ids of
            the K experts that each of L mixture layers sent it to; None unless asked for.

    Raises:
        EngineError: The parts contradict each other.
    """

    request_id: str
    prompt_ids: np.ndarray
    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: tuple[tuple[int, int], ...]
    finish_reason: FinishReason
    seed: int
    exact: bool = True
    routed_experts: np.ndarray | None = None

    def __post_init__(self) -> None:
        where = f"completion of {self.request_id!r}"
        for name, array, dtype in (
            ("prompt_ids", self.prompt_ids, np.int32),
            ("token_ids", self.token_ids, np.int32),
            ("logprobs", self.logprobs, np.float32),
        ):
            if array.ndim != 1 or array.dtype != dtype:
                got = f"{array.dtype}{list(array.shape)}"
                raise EngineError(f"{where}: {name} is {got}, allowed is a 1-D {np.dtype(dtype)} array")
        if len(self.logprobs) != len(self.token_ids):
            raise EngineError(f"{where}: {len(self.token_ids)} tokens but {len(self.logprobs)} logprobs")
        covered = sum(length for _, length in self.versions)
        if not self.versions or covered != len(self.token_ids):
            tokens = len(self.token_ids)
            raise EngineError(f"{where}: versions {self.versions} cover {covered} of {tokens} tokens")
        if self.finish_reason not in FINISH_REASONS:
            got = self.finish_reason
            raise EngineError(f"{where}: finish_reason is {got!r}, allowed is {FINISH_REASONS}")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def oldest_version(self) -> int:
        """The lowest policy version that drew a token."""
        return min(version for version, _ in self.versions)

    @property
    def newest_version(self) -> int:
        """The highest policy version that drew a token."""
        return max(version for version, _ in self.versions)
