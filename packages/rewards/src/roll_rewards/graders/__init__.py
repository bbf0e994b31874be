"""The graders of this package, one in each file."""

from roll_rewards.graders.cached import Cached
from roll_rewards.graders.choice import Choice
from roll_rewards.graders.code import Code
from roll_rewards.graders.detection import Detection
from roll_rewards.graders.exact import Exact
from roll_rewards.graders.ifbench import IfBench
from roll_rewards.graders.ifeval import IfEval
from roll_rewards.graders.json_answer import JsonAnswer
from roll_rewards.graders.judge import Judge
from roll_rewards.graders.language import Language
from roll_rewards.graders.layout import Layout
from roll_rewards.graders.length import CosineLength, Length
from roll_rewards.graders.math import Math
from roll_rewards.graders.number import Number
from roll_rewards.graders.pattern import Pattern
from roll_rewards.graders.process import ProcessReward
from roll_rewards.graders.python import PythonCallable
from roll_rewards.graders.reasoning_gym import ReasoningGym
from roll_rewards.graders.remote import Remote
from roll_rewards.graders.repetition import Repetition
from roll_rewards.graders.reward_model import RewardModel
from roll_rewards.graders.routed import Routed
from roll_rewards.graders.text_match import TextMatch
from roll_rewards.graders.video_question import VideoQuestion
from roll_rewards.graders.weighted import Component, Weighted

__all__ = [
    "Cached",
    "Choice",
    "Code",
    "Component",
    "CosineLength",
    "Detection",
    "Exact",
    "IfBench",
    "IfEval",
    "JsonAnswer",
    "Judge",
    "Language",
    "Layout",
    "Length",
    "Math",
    "Number",
    "Pattern",
    "ProcessReward",
    "PythonCallable",
    "ReasoningGym",
    "Remote",
    "Repetition",
    "RewardModel",
    "Routed",
    "TextMatch",
    "VideoQuestion",
    "Weighted",
]
