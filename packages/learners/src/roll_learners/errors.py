"""The root of every error this package raises; anyone who calls the package catches it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LearnerError(Exception):
    """Raised for a value, a batch or a state that a learner cannot train on.

    The message says what was asked, what was got, what is allowed and where.
    """


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> LearnerError:
    """The error for a name that is not registered, naming the nearest one.

    Args:
        kind: What the name should have been, such as "policy loss".
        name: The name that was given.
        allowed: All names that exist.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return LearnerError(f"unknown {kind} {name!r}: {hint}allowed are {', '.join(names)}")
