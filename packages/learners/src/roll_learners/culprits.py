"""Which samples make an update not finite; learners ask after the fact, so a healthy update costs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

PASSES = 64
"""Most computations of a search; one bad sample of S takes 2 log2(S), which together cost two updates."""


def culprits(
    members: Sequence[int], finite: Callable[[Sequence[int]], bool], *, passes: int = PASSES
) -> list[int]:
    """The members that are not finite by themselves, found by halving; ascending, never empty.

    Members that are not finite only together are all named, and so are those among which the search
    ended for want of passes.

    Args:
        members: At least one; together they are not finite.
        finite: Whether loss and gradient of these members alone are finite.
        passes: Most calls of `finite`.
    """
    named: list[int] = []
    suspects = deque([list(members)])
    while suspects:
        group = suspects.popleft()
        if len(group) == 1 or passes < 2:
            named += group
            continue
        passes -= 2
        halves = group[: len(group) // 2], group[len(group) // 2 :]
        bad = [half for half in halves if not finite(half)]
        if bad:
            suspects.extend(bad)
        else:
            named += group
    return sorted(named)
