"""The environments of this package, one in each file."""

from roll_agentic.environments.answer import marked_answer
from roll_agentic.environments.countdown import Countdown
from roll_agentic.environments.frozen_lake import FrozenLake
from roll_agentic.environments.maths import Maths, maths_with_python
from roll_agentic.environments.number_guessing import NumberGuessing
from roll_agentic.environments.retrieval import QuestionAnswering, retrieval_qa
from roll_agentic.environments.shell import MemoryShell, Shell
from roll_agentic.environments.sokoban import Sokoban
from roll_agentic.environments.terminal import Terminal, TerminalTask
from roll_agentic.environments.tic_tac_toe import RandomPlayer, TicTacToe, solo_tic_tac_toe

__all__ = [
    "Countdown",
    "FrozenLake",
    "Maths",
    "MemoryShell",
    "NumberGuessing",
    "QuestionAnswering",
    "RandomPlayer",
    "Shell",
    "Sokoban",
    "Terminal",
    "TerminalTask",
    "TicTacToe",
    "marked_answer",
    "maths_with_python",
    "retrieval_qa",
    "solo_tic_tac_toe",
]
