"""The transformers engine; needs the extra `transformers`."""

from roll_rollout.transformers_engine.core import EngineStats
from roll_rollout.transformers_engine.engine import TransformersEngine

__all__ = ["EngineStats", "TransformersEngine"]
