"""Cutting what a policy went on to say after a stop sequence. Called by policies."""

from collections.abc import Sequence
from dataclasses import dataclass

from roll_agentic.errors import AgenticError


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCut:
    """What is left of a response.

    Example: `StopCut(text="Action: f(1)\\n", stop="Observation:", tokens=5)`.

    Attributes:
        text: The response up to the stop sequence's first character.
        stop: The stop sequence that was found; None when there was none.
        tokens: How many tokens are kept: those that begin before that character.
    """

    text: str
    stop: str | None
    tokens: int


def cut_at_stop(pieces: Sequence[str], stops: Sequence[str]) -> StopCut:
    """Cut a response at the first stop sequence in it, text and tokens alike.

    A token that begins before the stop sequence and reaches into it is kept, since a token cannot be
    split and its beginning belongs to the response; `text` is exact in any case. Use `tokens` with
    `Segment.head`, so that nothing after the cut is remembered or trained.

    Args:
        pieces: The text that each token adds, in order; empty where a token completes no character.
        stops: Stop sequences, none of them empty; the one that begins first counts, and of several
            that begin together the longest.

    Raises:
        AgenticError: A stop sequence is empty.
    """
    if "" in stops:
        raise AgenticError(f"a stop sequence must not be empty, got {list(stops)}")
    text = "".join(pieces)
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return StopCut(text=text, stop=None, tokens=len(pieces))
    position, _, stop = min(found)
    kept = start = 0
    for piece in pieces:
        if start >= position:
            break
        kept += 1
        start += len(piece)
    return StopCut(text=text[:position], stop=stop, tokens=kept)
