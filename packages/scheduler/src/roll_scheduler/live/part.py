"""What a generation that may be stopped is given. Made by the driver for `generate_part`."""

import asyncio
from typing import Generic, TypeVar

from roll_scheduler.partial import VersionSpan

__all__ = ["Part"]

C = TypeVar("C")


class Part(Generic[C]):
    """Where a call goes on from, and the wish that it end soon.

    Attributes:
        kept: The completion that the call before returned, None if this one begins anew.
        tokens: Number of its tokens; the result's `tokens` counts them too.
        spans: Which versions sampled them.
        stopping: Set when the call is to end: it returns `Generated(..., finished=False)` with all it has, or
            a finished one if it was done.
    """

    def __init__(self, kept: C | None, tokens: int, spans: tuple[VersionSpan, ...]) -> None:
        self.kept = kept
        self.tokens = tokens
        self.spans = spans
        self.stopping = asyncio.Event()
