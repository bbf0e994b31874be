"""Environments of other libraries, one file each; a library is imported when its environment is made."""

from roll_agentic.adapters.gem import GemEnvironment
from roll_agentic.adapters.gymnasium import GymnasiumText
from roll_agentic.adapters.reasoning_gym import ReasoningGym
from roll_agentic.adapters.rock import RockEnvironment, RockShell
from roll_agentic.adapters.textarena import TextArena, TextArenaGame
from roll_agentic.adapters.webshop import WebShop

__all__ = [
    "GemEnvironment",
    "GymnasiumText",
    "ReasoningGym",
    "RockEnvironment",
    "RockShell",
    "TextArena",
    "TextArenaGame",
    "WebShop",
]
