"""Engines that generate tokens with exact log-probs, and weight sync into them."""

from roll_rollout.completion import Completion
from roll_rollout.engine import Engine, EngineLoad
from roll_rollout.errors import EngineClosed, EngineError, PromptTooLong, SamplingError, WeightMismatch
from roll_rollout.request import GenerateRequest
from roll_rollout.sampling import SamplingParams
from roll_rollout.scripted import ScriptedEngine
from roll_rollout.stop_strings import kept_before_stop
from roll_rollout.versions import VersionRuns
from roll_rollout.weights import (
    DTYPE_BYTES,
    TensorSpec,
    WeightBucket,
    WeightReceipt,
    WeightUpdate,
    pack_buckets,
    verify_update,
    weights_checksum,
)

__all__ = [
    "DTYPE_BYTES",
    "Completion",
    "Engine",
    "EngineClosed",
    "EngineError",
    "EngineLoad",
    "GenerateRequest",
    "PromptTooLong",
    "SamplingError",
    "SamplingParams",
    "ScriptedEngine",
    "TensorSpec",
    "VersionRuns",
    "WeightBucket",
    "WeightMismatch",
    "WeightReceipt",
    "WeightUpdate",
    "kept_before_stop",
    "pack_buckets",
    "verify_update",
    "weights_checksum",
]
