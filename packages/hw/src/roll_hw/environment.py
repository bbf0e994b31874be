"""Threads and environment variables of worker processes. Called by whoever starts workers."""

from collections.abc import Mapping

from roll_hw.errors import HwError

__all__ = ["threads_per_process", "worker_environment"]

FORWARDED_PREFIXES = (
    "GLOO_",
    "HCCL_",
    "HF_",
    "HSA_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "SGLANG_",
    "TOKENIZERS_",
    "TORCH_",
    "TRANSFORMERS_",
    "VLLM_",
)
SECRET_SUFFIXES = ("_KEY", "_PASSWORD", "_SECRET", "_TOKEN")


def threads_per_process(cores: int, active_processes: int) -> int:
    """Threads that each process gets: cores / processes that are active at the same time, at least 1.

    Args:
        cores: Cores of the machine, >= 1.
        active_processes: Processes that compute at the same time, >= 1.

    Raises:
        HwError: If a number is out of its range.
    """
    if cores < 1 or active_processes < 1:
        raise HwError(f"threads: got {cores} cores for {active_processes} processes, both have to be >= 1")
    return max(1, cores // active_processes)


def worker_environment(driver: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Environment of a worker: what the user set beats the default and reaches the worker.

    The result has every default, with the driver's value if the driver has one, and the driver's variables
    that libraries in workers read (`NCCL_`, `HF_`, `VLLM_`, `OMP_` and the like). Paths, visible devices and
    other variables of the driver's machine are not passed on, nor are secrets (`..._TOKEN`, `..._KEY`,
    `..._SECRET`, `..._PASSWORD`), since a worker's environment ends up in logs; `defaults` may name one.

    Args:
        driver: Environment of the driver process.
        defaults: Variables that a worker needs, with the values to use if the user says nothing.
    """
    forwarded = {
        name: value
        for name, value in driver.items()
        if name in defaults or (name.startswith(FORWARDED_PREFIXES) and not name.endswith(SECRET_SUFFIXES))
    }
    return {**defaults, **forwarded}
