"""Policy versions of a completion while it grows; engines keep one of these a request."""

from collections.abc import Sequence
from typing import Self


class VersionRuns:
    """Which policy version draws the tokens of one completion.

    Args:
        version: The version that draws its first token.
    """

    __slots__ = ("_starts",)

    def __init__(self, version: int) -> None:
        self._starts: list[tuple[int, int]] = [(version, 0)]

    @classmethod
    def after(cls, runs: Sequence[tuple[int, int]], version: int) -> Self:
        """Returns the versions of a completion that begins with `runs` and goes on under `version`."""
        versions, length = cls(runs[0][0]), 0
        for each, run in runs:
            versions.switch(each, at=length)
            length += run
        versions.switch(version, at=length)
        return versions

    def switch(self, version: int, *, at: int) -> None:
        """Tokens from index `at` on are drawn by `version`. Indices never fall from call to call."""
        last_version, last_start = self._starts[-1]
        if version == last_version:
            return
        if last_start == at:
            self._starts.pop()
        if not self._starts or self._starts[-1][0] != version:
            self._starts.append((version, at))

    def runs(self, length: int) -> tuple[tuple[int, int], ...]:
        """Returns pairs (version, run length) that cover the first `length` tokens.

        With no tokens: one run of length 0 under the latest version.
        """
        if length == 0:
            return ((self._starts[-1][0], 0),)
        ends = [start for _, start in self._starts[1:]] + [length]
        pairs = ((v, min(end, length) - start) for (v, start), end in zip(self._starts, ends, strict=True))
        return tuple((version, run) for version, run in pairs if run > 0)
