"""The graders of this package, one in each file."""

from roll_rewards.graders.exact import Exact
from roll_rewards.graders.number import Number
from roll_rewards.graders.pattern import Pattern
from roll_rewards.graders.python import PythonCallable
from roll_rewards.graders.reasoning_gym import ReasoningGym

__all__ = ["Exact", "Number", "Pattern", "PythonCallable", "ReasoningGym"]
