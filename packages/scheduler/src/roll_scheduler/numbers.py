"""What counts as a number where callers give one. Used by the constructors of this package."""

import math
from typing import TypeGuard

__all__ = ["is_finite"]


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that a float can hold: no text, no bool, neither infinite nor NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
