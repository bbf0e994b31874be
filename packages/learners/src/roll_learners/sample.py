"""The record a learner trains on; `roll_launch` makes one from each completion or trajectory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roll_learners.errors import LearnerError
from roll_learners.media import Media


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One sequence of N tokens, of which those under `response_mask` are trained.

    Example::

        Sample(
            token_ids=np.array([5, 6, 9, 2], np.int32),             # prompt 5 6, response 9 2
            response_mask=np.array([False, False, True, True]),
            behavior_logprobs=np.array([0.0, 0.0, -0.7, -0.1], np.float32),
            reward=1.0, group=3, version=12,
        )

    Attributes:
        token_ids: int32[N], the ids the engine sampled or the template made.
        response_mask: bool[N], tokens that are trained. The first is False: nothing predicts it.
        behavior_logprobs: float32[N], the engine's log-probs at sampling, in nats, 0 where
            `response_mask` is False; NaN where the engine returned none. None if there is no engine.
        reward: Scalar after shaping. NaN is no verdict: the sample leaves group statistics and loss.
        group: Id that the completions of one prompt share.
        version: Oldest policy version that sampled a token of it.
        truncated: The response was cut at its token limit.
        turn_rewards: float32[K], what each turn (unbroken run of trained tokens) earned; their sum is
            `reward`. None places all of it on the last turn.
        turn_states: int64[K], an id of the environment's state before each turn, the same number for the
            same state; for estimators that compare turns. None if unknown.
        baseline: Reward of the greedy completion of the same prompt, for ReMax; NaN if unknown.
        expert: The tokens are a demonstration, to be imitated, not a completion of the policy.
        tag: Domain of the prompt, by which teachers are chosen.
        media: Images and videos that tokens of it stand for, or None.
        routed_experts: int16[N or fewer, L, K], the experts that the engine sent each of the first tokens to,
            in each layer, for a learner that replays them; a token with -1, or without an entry, is routed
            by the learner's weights. None for models without experts, or to route anew.
    """

    token_ids: npt.NDArray[np.int32]
    response_mask: npt.NDArray[np.bool_]
    behavior_logprobs: npt.NDArray[np.float32] | None = None
    reward: float = 0.0
    group: int = 0
    version: int = 0
    truncated: bool = False
    turn_rewards: npt.NDArray[np.float32] | None = None
    turn_states: npt.NDArray[np.int64] | None = None
    baseline: float = math.nan
    expert: bool = False
    tag: str = ""
    media: Media | None = None
    routed_experts: npt.NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        shape = (len(self.token_ids),)
        _check_array("token_ids", self.token_ids, np.int32, shape)
        _check_array("response_mask", self.response_mask, np.bool_, shape)
        if self.behavior_logprobs is not None:
            _check_array("behavior_logprobs", self.behavior_logprobs, np.float32, shape)
        if shape[0] and self.response_mask[0]:
            raise LearnerError("Sample.response_mask[0] is True: the first token has no token before it")
        if math.isinf(self.reward):
            raise LearnerError(f"Sample.reward is {self.reward}: a finite number, or nan for no verdict")
        self._check_turns()
        if self.media is not None:
            _check_array("media.token_kinds", self.media.token_kinds, np.int8, shape)
        experts = self.routed_experts
        if experts is not None and (
            experts.dtype != np.int16 or experts.ndim != 3 or len(experts) > shape[0]
        ):
            raise LearnerError(
                f"Sample.routed_experts is {experts.dtype}{list(experts.shape)}, allowed is int16[T, L, K] "
                f"with T at most {shape[0]}"
            )

    @property
    def turn_starts(self) -> npt.NDArray[np.bool_]:
        """bool[N], the first token of each turn."""
        before = np.concatenate([[False], self.response_mask[:-1]])
        starts: npt.NDArray[np.bool_] = self.response_mask & ~before
        return starts

    @property
    def response_tokens(self) -> int:
        """Number of trained tokens."""
        return int(np.count_nonzero(self.response_mask))

    def _check_turns(self) -> None:
        if self.turn_rewards is None and self.turn_states is None:
            return
        shape = (int(np.count_nonzero(self.turn_starts)),)
        if self.turn_states is not None:
            _check_array("turn_states", self.turn_states, np.int64, shape)
        if self.turn_rewards is not None:
            _check_array("turn_rewards", self.turn_rewards, np.float32, shape)
            total = float(self.turn_rewards.sum(dtype=np.float64))
            if abs(total - self.reward) > 1e-3 * (1 + abs(self.reward)):
                raise LearnerError(f"Sample.turn_rewards sum to {total}, but reward is {self.reward}")

    @staticmethod
    def from_completion(
        prompt_ids: npt.NDArray[np.int32],
        response_ids: npt.NDArray[np.int32],
        behavior_logprobs: npt.NDArray[np.float32] | None = None,
        *,
        reward: float = 0.0,
        group: int = 0,
        version: int = 0,
        truncated: bool = False,
    ) -> Sample:
        """A sample of one prompt and one response, all of whose tokens are trained.

        Args:
            prompt_ids: int32[P], at least one token.
            response_ids: int32[R], may be empty.
            behavior_logprobs: float32[R] of the response tokens alone, or None.
            reward: See `Sample`.
            group: See `Sample`.
            version: See `Sample`.
            truncated: See `Sample`.

        Raises:
            LearnerError: The prompt is empty, or the log-probs do not fit the response.
        """
        prompt, response = len(prompt_ids), len(response_ids)
        if not prompt:
            raise LearnerError("Sample.from_completion: prompt_ids is empty, at least one token is needed")
        padded = None
        if behavior_logprobs is not None:
            if len(behavior_logprobs) != response:
                raise LearnerError(
                    f"Sample.from_completion: {len(behavior_logprobs)} behavior_logprobs "
                    f"for {response} response tokens"
                )
            padded = np.concatenate([np.zeros(prompt, np.float32), behavior_logprobs]).astype(np.float32)
        return Sample(
            token_ids=np.concatenate([prompt_ids, response_ids]).astype(np.int32),
            response_mask=np.arange(prompt + response) >= prompt,
            behavior_logprobs=padded,
            reward=reward,
            group=group,
            version=version,
            truncated=truncated,
        )


def missing_end_token(sample: Sample, end_token_id: int) -> bool:
    """True if no trained token is the end token; one inside the prompt does not count."""
    return end_token_id not in sample.token_ids[sample.response_mask]


def trainable(samples: Sequence[Sample], *, mask_truncated: bool = False) -> npt.NDArray[np.bool_]:
    """bool[S], the samples that take part in group statistics and loss.

    Those have a verdict and a trained token and, if `mask_truncated`, were not cut at their limit.
    """
    return np.array(
        [
            not math.isnan(sample.reward)
            and sample.response_tokens > 0
            and not (mask_truncated and sample.truncated)
            for sample in samples
        ],
        np.bool_,
    )


def _check_array(name: str, array: npt.NDArray[np.generic], dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise LearnerError(
            f"Sample.{name} is {array.dtype}{list(array.shape)}, allowed is {np.dtype(dtype)}{list(shape)}"
        )
