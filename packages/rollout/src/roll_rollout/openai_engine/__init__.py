"""The engine that stands before an OpenAI-compatible endpoint; needs the extra `http`."""

from roll_rollout.http_endpoint import RetryPolicy
from roll_rollout.openai_engine.engine import OpenAIEngine

__all__ = ["OpenAIEngine", "RetryPolicy"]
