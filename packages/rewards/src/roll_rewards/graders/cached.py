"""Grader `cached`: remembers verdicts, for graders that are slow or cost money."""

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.graders.nesting import nested_grader
from roll_rewards.scores import Score


@dataclass(frozen=True, kw_only=True)
class Cached:
    """What the grader said of the same response, reference and columns before; failures are asked again.

    The oldest verdict that was not asked for goes first. The memory is this object's own: a copy in another
    process starts empty.

    Attributes:
        grader: The grader, or its `{"name", "options"}`.
        max_entries: How many verdicts are kept, at least 1.

    Raises:
        RewardError: The grader cannot be made, or `max_entries` is below 1.
    """

    grader: Grader | Mapping[str, object]
    max_entries: int = 100_000

    def __post_init__(self) -> None:
        if self.max_entries < 1:
            raise RewardError(
                f"option 'max_entries' of grader 'cached' must be above 0, got {self.max_entries}"
            )
        made = nested_grader(self.grader, where="option 'grader' of grader 'cached'")
        object.__setattr__(self, "grader", made)

    def __getstate__(self) -> dict[str, object]:
        return {"grader": self.grader, "max_entries": self.max_entries}

    @functools.cached_property
    def _verdicts(self) -> "OrderedDict[bytes, Score]":
        return OrderedDict()

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict, remembered or new. See `Grader.grade`."""
        key = _digest(response, reference, columns)
        known = self._verdicts.get(key)
        if known is not None:
            self._verdicts.move_to_end(key)
            return known
        score = await nested_grader(self.grader, where="cached").grade(response, reference, **columns)
        if score.failure is None:
            self._verdicts[key] = score
            while len(self._verdicts) > self.max_entries:
                self._verdicts.popitem(last=False)
        return score


def _digest(response: str, reference: object, columns: Mapping[str, object]) -> bytes:
    """Same for the same row; objects without a stable `repr` make every row its own."""
    text = repr((response, reference, sorted(columns.items())))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).digest()
