"""The environments of this package, one in each file."""

from roll_agentic.environments.number_guessing import NumberGuessing

__all__ = ["NumberGuessing"]
