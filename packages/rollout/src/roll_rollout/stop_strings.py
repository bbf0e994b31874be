"""Where a stop string cuts a completion; called by engines that draw token by token."""

from collections.abc import Callable, Sequence

import numpy as np

Decode = Callable[[Sequence[int] | np.ndarray], str]
"""Token ids to text, special tokens included, nothing tidied up."""

_BYTES_PER_CHARACTER = 4
_SLACK = 8


def kept_before_stop(
    token_ids: Sequence[int] | np.ndarray, stop: Sequence[str], decode: Decode
) -> int | None:
    """Returns how many leading tokens survive the stop string that the newest token completed, or None.

    A token is cut when it contains or follows the first character of the stop string. Only a tail that
    is long enough for the longest stop string is decoded (a character takes at most four byte tokens),
    so the cost of a call does not grow with the completion. Call it after every token.

    Args:
        token_ids: The completion so far, newest token last.
        stop: Stop strings; of several matches the earliest wins.
        decode: Turns token ids into text.
    """
    window = longest_cut(stop)
    first = max(0, len(token_ids) - window)
    tail = token_ids[first:]
    text = decode(tail)
    starts = [index for index in (text.find(each) for each in stop) if index >= 0]
    if not starts:
        return None
    before = text[: min(starts)]
    kept = len(tail) - 1
    while kept > 0 and not before.startswith(decode(tail[:kept])):
        kept -= 1
    return first + kept


def kept_before_any_stop(
    token_ids: Sequence[int] | np.ndarray, stop: Sequence[str], decode: Decode
) -> int | None:
    """Returns how many leading tokens survive the first stop string in a whole completion, or None.

    For engines that hand over several tokens at once. The text is decoded once if there is no stop string.
    """
    text = decode(token_ids)
    if not any(each in text for each in stop):
        return None
    for length in range(1, len(token_ids) + 1):
        kept = kept_before_stop(token_ids[:length], stop, decode)
        if kept is not None:
            return kept
    return None


def longest_cut(stop: Sequence[str]) -> int:
    """Returns the most tokens that a stop string can cut when its last one is drawn; 0 without any."""
    if not stop:
        return 0
    return _BYTES_PER_CHARACTER * max(len(text) for text in stop) + _SLACK
