"""Devices as data: platforms, device plans, memory estimates, worker environments."""

from roll_hw.device_plan import DevicePlan, parse_device_plan
from roll_hw.environment import threads_per_process, worker_environment
from roll_hw.errors import HwError
from roll_hw.memory import MemoryEstimate, estimate_rollout_memory, estimate_training_memory
from roll_hw.platform import PLATFORMS, Platform, count_devices, detect_platform
from roll_hw.transformer_shape import TransformerShape, parameter_count, transformer_shape

__all__ = [
    "PLATFORMS",
    "DevicePlan",
    "HwError",
    "MemoryEstimate",
    "Platform",
    "TransformerShape",
    "count_devices",
    "detect_platform",
    "estimate_rollout_memory",
    "estimate_training_memory",
    "parameter_count",
    "parse_device_plan",
    "threads_per_process",
    "transformer_shape",
    "worker_environment",
]
