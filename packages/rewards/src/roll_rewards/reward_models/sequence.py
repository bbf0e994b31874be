"""Scores of a Hugging Face sequence-classification model (extra `hf`), which imports torch when made."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from roll_rewards.errors import RewardError

JOINT = "response_joint"
"""Key of a model's config.json: what stands between a text prompt and the response where there is no chat
template, by default a line break. Models that have the key were trained on responses that end with their end
token, so that white space of a chat template after it is left out."""

DType = Literal["float32", "bfloat16", "float16"]
Conversation = Sequence[Mapping[str, str]]


class SequenceScorer:
    """A loaded reward model: one number for each conversation.

    The number is the model's logit at the last token. It does not depend on what else is in the batch.
    """

    def __init__(self, model: Path, *, device: str, dtype: DType, max_tokens: int, label: int = 0) -> None:
        """Loads model and tokenizer.

        Args:
            model: Directory in Hugging Face's form; nothing is downloaded.
            device: As torch names it.
            dtype: Of the weights.
            max_tokens: Longer conversations lose tokens at their beginning; at least 1.
            label: Which of the model's outputs is the reward.

        Raises:
            RewardError: torch or transformers is not installed, or there is no such model or label.
        """
        self._torch, transformers = _libraries()
        if not (model / "config.json").is_file():
            raise RewardError(f"a reward model is a directory with config.json, got {model}")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(model), local_files_only=True
            )
            self._model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(model), local_files_only=True, dtype=getattr(self._torch, dtype)
            )
        except (OSError, ValueError, ImportError) as error:
            raise RewardError(f"cannot load the reward model {model}: {error}") from error
        self._model.to(device).eval()
        if self._model.config.num_labels <= label:
            raise RewardError(
                f"{model} has {self._model.config.num_labels} outputs, label {label} is not among them"
            )
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._tokenizer.padding_side, self._tokenizer.truncation_side = "right", "left"
        self._device, self._max_tokens, self._label = device, max_tokens, label
        self._joint: str | None = getattr(self._model.config, JOINT, None)

    def scores(self, conversations: Sequence[Conversation]) -> list[float]:
        """The logits of conversations, in their order.

        Args:
            conversations: Messages, of which the last is the response.
        """
        texts = [self._text(conversation) for conversation in conversations]
        encoded = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self._max_tokens,
            add_special_tokens=False,
        )
        inputs = {name: encoded[name].to(self._device) for name in ("input_ids", "attention_mask")}
        with self._torch.inference_mode():
            logits = self._model(**inputs).logits
        return [float(value) for value in logits[:, self._label].float().tolist()]

    def _text(self, conversation: Conversation) -> str:
        if self._tokenizer.chat_template:
            messages = [dict(message) for message in conversation]
            text = str(self._tokenizer.apply_chat_template(messages, tokenize=False))
            return text if self._joint is None else text.rstrip()
        joint = "\n" if self._joint is None else self._joint
        return joint.join(message["content"] for message in conversation) + (self._tokenizer.eos_token or "")


def _libraries() -> tuple[Any, Any]:
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise RewardError(
            f"a reward model needs torch and transformers: pip install 'roll-rewards[hf]' ({error})"
        ) from error
