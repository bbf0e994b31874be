"""Grader `reward_model`: the score of a sequence-classification model (extra `hf`)."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.reward_models.sequence import DType
from roll_rewards.reward_models.serving import ConversationQueue, ConversationScorer
from roll_rewards.scores import Score


@dataclass(frozen=True, kw_only=True)
class RewardModel:
    """What a reward model says of a response to its prompt.

    The model is loaded at the first score, in a thread, and then judges what comes at the same time in
    batches.

    Example: `RewardModel(model="models/rm", device="cuda:1", dtype="bfloat16")`.

    Attributes:
        model: Directory in Hugging Face's form, with a tokenizer; its chat template is used if it has one.
        device: As torch names it.
        dtype: Of the weights.
        batch_size: Largest batch, at least 1.
        wait_s: How long a batch that is not full waits for more, at least 0.
        max_tokens: Longer conversations lose tokens at their beginning; at least 1.
        scale: `logit` as it is, or `sigmoid` of it, in 0..1.
        label: Which of the model's outputs is the reward.
        prompt: Column of the prompt, a text or a list of messages.
        thinking: Whether the model sees the response's reasoning (`ignore`) or not.
        scorer: What is asked instead of loading `model`, such as one that many processes share.

    Raises:
        RewardError: An option is out of its range; when grading, the model cannot be loaded.
    """

    model: str
    device: str = "cpu"
    dtype: DType = "float32"
    batch_size: int = 8
    wait_s: float = 0.005
    max_tokens: int = 4096
    scale: Literal["logit", "sigmoid"] = "logit"
    label: int = 0
    prompt: str = "prompt"
    thinking: Thinking = "strip"
    scorer: ConversationScorer | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.max_tokens < 1 or self.wait_s < 0 or self.label < 0:
            raise RewardError(
                "grader 'reward_model' needs batch_size >= 1, max_tokens >= 1, wait_s >= 0 and label >= 0, "
                f"got {self.batch_size}, {self.max_tokens}, {self.wait_s} and {self.label}"
            )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @functools.cached_property
    def _asked(self) -> ConversationScorer:
        if self.scorer is not None:
            return self.scorer
        return ConversationQueue(
            Path(self.model),
            device=self.device,
            dtype=self.dtype,
            max_tokens=self.max_tokens,
            label=self.label,
            batch_size=self.batch_size,
            wait_s=self.wait_s,
        )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The model's score; the part `logit` is it before scaling. See `Grader.grade`."""
        shown = visible_part(response, thinking=self.thinking)
        logit = await self._asked.score(conversation(columns.get(self.prompt, ""), shown))
        value = 1 / (1 + math.exp(-max(min(logit, 500.0), -500.0))) if self.scale == "sigmoid" else logit
        return Score(value=value, parts={"logit": logit})


def conversation(prompt: object, response: str) -> list[dict[str, str]]:
    """Prompt and response as messages.

    Args:
        prompt: A text, or messages.
        response: Becomes the assistant's message.
    """
    text = response.encode("utf-8", "replace").decode()
    answer = {"role": "assistant", "content": text}
    if isinstance(prompt, list):
        return [*({str(k): str(v) for k, v in message.items()} for message in prompt), answer]
    return [{"role": "user", "content": str(prompt)}, answer]
