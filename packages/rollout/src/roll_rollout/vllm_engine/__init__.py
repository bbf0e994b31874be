"""The vLLM engine; needs vLLM (extra `vllm`, or a CPU build in an environment of its own)."""

from roll_rollout.vllm_engine.engine import VLLMEngine
from roll_rollout.vllm_engine.options import SUPPORTED_VERSIONS

__all__ = ["SUPPORTED_VERSIONS", "VLLMEngine"]
