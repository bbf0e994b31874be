"""What the scheduler may know of a prompt, told by the caller; used to predict lengths and to route."""

from collections.abc import Hashable
from typing import NamedTuple

__all__ = ["NO_TRAITS", "PromptTraits"]


class PromptTraits(NamedTuple):
    """For example `PromptTraits(key="gsm8k/17", prompt_tokens=96)`.

    Attributes:
        key: Equal for occurrences of one prompt, in whichever epoch; None if that is not known.
        session: Equal for what should run on one replica; None for none.
        prompt_tokens: Length of the prompt, >= 0; 0 if that is not known.
    """

    key: str | None = None
    session: Hashable | None = None
    prompt_tokens: int = 0


NO_TRAITS = PromptTraits()
