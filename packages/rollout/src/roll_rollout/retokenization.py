"""Where ids would have changed, had the text of a completion been tokenised again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roll_rollout.stop_strings import Decode

Encode = Callable[[str], Sequence[int]]
"""Text to ids, without special tokens of the encoder's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDrift:
    """The first place where sampled and re-encoded ids differ, for example

        TokenDrift(index=0, sampled=(1, 2), encoded=(3,), text="hello")

    Attributes:
        index: Tokens that agree before it.
        sampled: Sampled ids from there on.
        encoded: Ids of the same text from there on.
        text: Their text.
    """

    index: int
    sampled: tuple[int, ...]
    encoded: tuple[int, ...]
    text: str


def retokenization_drift(
    token_ids: Sequence[int] | np.ndarray, *, decode: Decode, encode: Encode
) -> TokenDrift | None:
    """Returns where the ids of a completion's text leave the ids that were sampled; None if nowhere.

    Nothing in this package tokenises a completion again. The function measures what that spares: rates per
    tokenizer, and the places where a caller's own detour through text would have changed the trained tokens.

    Args:
        token_ids: int[T], as sampled.
        decode: Ids to text.
        encode: Text to ids.
    """
    sampled = np.asarray(token_ids).tolist()
    encoded = list(encode(decode(sampled)))
    if sampled == encoded:
        return None
    pairs = zip(sampled, encoded, strict=False)
    index = next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(sampled), len(encoded))
    )
    return TokenDrift(
        index=index,
        sampled=tuple(sampled[index:]),
        encoded=tuple(encoded[index:]),
        text=decode(sampled[index:]),
    )
