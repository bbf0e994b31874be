"""What the engine must know of a Hugging Face causal language model, and which models it refuses.

Written for transformers 5.20 and later 5.x.
"""

import inspect

from transformers import PreTrainedModel

from roll_rollout.errors import EngineError
from roll_rollout.transformers_engine.attention import GROUPED_ATTENTION

_ARGUMENTS = ("past_key_values", "position_ids", "logits_to_keep")
_SDPA = ("sdpa", GROUPED_ATTENTION)
_ATTENTIONS = (*_SDPA, "eager")


def check_model(model: PreTrainedModel) -> None:
    """Refuses models that cannot decode rows of different lengths in one batch.

    Raises:
        EngineError: `forward` lacks an argument, or the attention implementation takes no 4-D mask.
    """
    name = type(model).__name__
    arguments = inspect.signature(model.forward).parameters
    missing = [each for each in _ARGUMENTS if each not in arguments]
    if missing:
        raise EngineError(f"{name}.forward takes no {missing[0]!r}; this engine needs {_ARGUMENTS}")
    attention = model.config._attn_implementation
    if attention not in _ATTENTIONS:
        raise EngineError(f"{name}: attention implementation is {attention!r}, allowed is {_ATTENTIONS}")


def sliding_windows(model: PreTrainedModel, *, max_context: int | None) -> list[int | None]:
    """Returns the sliding window of every layer that holds keys and values; None is full attention.

    Raises:
        EngineError: A layer keeps another kind of state (recurrent, chunked, ...), or a window is shorter
            than the context under an attention implementation other than "sdpa".
    """
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    default = "full_attention" if window is None else "sliding_attention"
    if getattr(config, "attention_chunk_size", None) is not None:
        default = "chunked_attention"
    types = list(getattr(config, "layer_types", None) or [default] * config.num_hidden_layers)
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    types = types[: len(types) - shared]
    others = sorted(set(types) - {"full_attention", "sliding_attention"})
    if others:
        raise EngineError(
            f"{name}: layers of type {others[0]!r}, allowed are 'full_attention' and 'sliding_attention'"
        )
    windows = [window if each == "sliding_attention" else None for each in types]
    narrow = any(each is not None and (max_context is None or each < max_context) for each in windows)
    if narrow and model.config._attn_implementation not in _SDPA:
        got = f"{model.config._attn_implementation!r} in a context of {max_context}"
        raise EngineError(f"{name}: a sliding window of {window} needs attention 'sdpa', got {got}")
    return windows


def context_limit(model: PreTrainedModel, requested: int | None) -> int | None:
    """Returns the most tokens of prompt and completion; None if neither model nor caller says.

    Raises:
        EngineError: The caller asks for more than the model has positions for, or for fewer than 2.
    """
    config = model.config.get_text_config(decoder=True)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if requested is None:
        return positions
    if requested < 2 or (positions is not None and requested > positions):
        allowed = f"2 to {positions} (max_position_embeddings)"
        raise EngineError(f"max_context is {requested}, allowed is {allowed}")
    return requested
