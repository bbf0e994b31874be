"""What our own reader does not know (integrals, sums, limits), asked of math-verify and SymPy.

Only called in a worker process, whose deadline takes the place of math-verify's own timers: those work by
signals, which do not interrupt a computation inside C code.
"""

import importlib
import logging

_MAX_CHARS = 1000


def verified(answer: str, reference: str) -> bool:
    """Whether math-verify finds the two equal; it is not asked about answers above 1000 characters."""
    if max(len(answer), len(reference)) > _MAX_CHARS:
        return False
    math_verify = importlib.import_module("math_verify")
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    sides = []
    for text in (reference, answer):
        bare = text.strip().strip("$").removeprefix(r"\(").removesuffix(r"\)")
        sides.append(
            math_verify.parse(
                f"${bare}$", fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=False
            )
        )
    if not all(sides):
        return False
    return bool(math_verify.verify(sides[0], sides[1], timeout_seconds=None, raise_on_error=False))
