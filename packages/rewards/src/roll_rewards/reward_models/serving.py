"""A reward model that answers many callers: loaded at the first score, asked in batches, on one thread."""

import functools
from pathlib import Path
from typing import Protocol, runtime_checkable

from roll_rewards.reward_models.batching import BatchQueue
from roll_rewards.reward_models.sequence import Conversation, DType, SequenceScorer


@runtime_checkable
class ConversationScorer(Protocol):
    """What the grader `reward_model` asks: `ConversationQueue`, or what stands for one in another process."""

    async def score(self, conversation: Conversation) -> float:
        """The model's output for a conversation whose last message is the response.

        Raises:
            Exception: There is no score.
        """
        ...


class ConversationQueue:
    """`ConversationScorer` of a model in this process."""

    def __init__(
        self,
        model: Path,
        *,
        device: str = "cpu",
        dtype: DType = "float32",
        max_tokens: int = 4096,
        label: int = 0,
        batch_size: int = 8,
        wait_s: float = 0.005,
    ) -> None:
        """Loads nothing yet.

        Args:
            model: Directory in Hugging Face's form.
            device: As torch names it.
            dtype: Of the weights.
            max_tokens: Longer conversations lose tokens at their beginning.
            label: Which of the model's outputs is the reward.
            batch_size: Largest batch.
            wait_s: How long a batch that is not full waits for more.
        """
        self._scorer = functools.cache(
            lambda: SequenceScorer(model, device=device, dtype=dtype, max_tokens=max_tokens, label=label)
        )
        # The model is loaded in the queue's thread: loading would stop the event loop.
        self._queue: BatchQueue[Conversation, float] = BatchQueue(
            lambda batch: self._scorer().scores(batch),
            batch_size=batch_size,
            wait_s=wait_s,
            name=f"reward model {model}",
        )

    async def score(self, conversation: Conversation) -> float:
        """The logit; see `ConversationScorer`.

        Raises:
            RewardError: The model cannot be loaded.
        """
        return await self._queue.submit(conversation)

    def load(self) -> None:
        """Loads the model now, in the caller's thread.

        Raises:
            RewardError: It cannot be loaded.
        """
        self._scorer()
