"""What the scheduler may know of a prompt, told by the caller; used to predict lengths and to route."""

import math
from collections.abc import Hashable
from typing import NamedTuple

from roll_scheduler.errors import SchedulerError

__all__ = ["NO_TRAITS", "PromptTraits", "checked_tag", "checked_traits"]


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


def checked_traits(traits: object, group: int) -> PromptTraits:
    """What a caller's function said of a group's prompt.

    Raises:
        SchedulerError: If it is no `PromptTraits`, its key or session cannot be hashed, or the length of the
            prompt is no finite number >= 0.
    """
    if not isinstance(traits, PromptTraits):
        raise SchedulerError(f"traits: got {traits!r} for group {group}, allowed is a PromptTraits")
    for name, value in (("key", traits.key), ("session", traits.session)):
        try:
            hash(value)
        except TypeError as error:
            raise SchedulerError(
                f"traits: got {name} {value!r} for group {group}, allowed is what can be hashed"
            ) from error
    tokens: object = traits.prompt_tokens
    if not isinstance(tokens, int | float) or not 0 <= tokens < math.inf:
        raise SchedulerError(
            f"traits: got prompt_tokens {tokens!r} for group {group}, allowed is a finite number >= 0"
        )
    return traits


def checked_tag(tag: object, group: int) -> str:
    """The environment that a caller's function said a group's prompt is of.

    Raises:
        SchedulerError: If it is no text.
    """
    if not isinstance(tag, str):
        raise SchedulerError(f'tag: got {tag!r} for group {group}, allowed is text, "" for no environment')
    return tag
