"""The SGLang engine, before its HTTP server or around its in-process `Engine` (extras `http`, `sglang`)."""

from roll_rollout.http_endpoint import RetryPolicy
from roll_rollout.sglang_engine.engine import SGLangEngine

__all__ = ["RetryPolicy", "SGLangEngine"]
