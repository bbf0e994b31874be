"""Engines that generate tokens with exact log-probs, and weight sync into them."""

from roll_rollout.adapter import AdapterConfig, AdapterUpdate
from roll_rollout.capabilities import (
    AdapterEngine,
    CheckedEngine,
    DescribedEngine,
    EngineCapabilities,
    PausableEngine,
    PrefixCachingEngine,
    SleepingEngine,
    StreamingEngine,
    capabilities_of,
)
from roll_rollout.chunk import CompletionChunk
from roll_rollout.completion import Completion
from roll_rollout.engine import Engine, EngineLoad
from roll_rollout.errors import (
    EngineClosed,
    EngineError,
    EngineLibraryError,
    EngineUnavailable,
    PromptTooLong,
    SamplingError,
    UnsupportedRequest,
    WeightMismatch,
)
from roll_rollout.media import Media
from roll_rollout.recording import RecordingEngine, ReplayEngine, read_recording
from roll_rollout.request import GenerateRequest
from roll_rollout.retokenization import TokenDrift, retokenization_drift
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
    "AdapterConfig",
    "AdapterEngine",
    "AdapterUpdate",
    "CheckedEngine",
    "Completion",
    "CompletionChunk",
    "DescribedEngine",
    "Engine",
    "EngineCapabilities",
    "EngineClosed",
    "EngineError",
    "EngineLibraryError",
    "EngineLoad",
    "EngineUnavailable",
    "GenerateRequest",
    "Media",
    "PausableEngine",
    "PrefixCachingEngine",
    "PromptTooLong",
    "RecordingEngine",
    "ReplayEngine",
    "SamplingError",
    "SamplingParams",
    "ScriptedEngine",
    "SleepingEngine",
    "StreamingEngine",
    "TensorSpec",
    "TokenDrift",
    "UnsupportedRequest",
    "VersionRuns",
    "WeightBucket",
    "WeightMismatch",
    "WeightReceipt",
    "WeightUpdate",
    "capabilities_of",
    "kept_before_stop",
    "pack_buckets",
    "read_recording",
    "retokenization_drift",
    "verify_update",
    "weights_checksum",
]
