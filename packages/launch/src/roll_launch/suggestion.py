"""The end of an error message that names the nearest known name. Used wherever a user's name is looked up."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'qwen3'?"` for the nearest of `known`, or `""` where none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
