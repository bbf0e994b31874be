"""Kinds of accelerators as data, and which one this machine has. Called at the start of a run.

Everything is found out from environment variables, device files and the vendor's command, so that the asking
process neither imports torch nor opens a context on a device.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from roll_hw.errors import HwError

__all__ = ["PLATFORMS", "Platform", "count_devices", "detect_platform"]

QUERY_DEADLINE_S = 20.0
MIB_PER_GIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A kind of accelerator.

    Attributes:
        name: `"cuda"`, `"rocm"`, `"npu"` or `"cpu"`.
        torch_device: Device type in torch; ROCm's is `"cuda"`.
        visible_devices_variable: Environment variable that limits the devices of a process, None on CPU.
        collective_backend: Backend of `torch.distributed`; ROCm's RCCL goes by `"nccl"`.
        device_memory_gib: Memory of the smallest device, None if unknown or on CPU.
    """

    name: str
    torch_device: str
    visible_devices_variable: str | None
    collective_backend: str
    device_memory_gib: float | None = None


def _platform(name: str, torch_device: str, variable: str | None, backend: str) -> Platform:
    return Platform(
        name=name, torch_device=torch_device, visible_devices_variable=variable, collective_backend=backend
    )


PLATFORMS: Mapping[str, Platform] = MappingProxyType(
    {
        "cuda": _platform("cuda", "cuda", "CUDA_VISIBLE_DEVICES", "nccl"),
        "rocm": _platform("rocm", "cuda", "HIP_VISIBLE_DEVICES", "nccl"),
        "npu": _platform("npu", "npu", "ASCEND_RT_VISIBLE_DEVICES", "hccl"),
        "cpu": _platform("cpu", "cpu", None, "gloo"),
    }
)


def detect_platform(*, environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> Platform:
    """The platform of this machine; CPU if there is no accelerator or the environment hides all of them.

    Args:
        environment: Environment variables, those of this process by default.
        root: Root of the file system in which devices are looked for.
    """
    environment = os.environ if environment is None else environment
    for name in ("cuda", "rocm", "npu"):
        memory = _device_memory_mib(name, environment, root)
        visible = _visible(PLATFORMS[name], environment, len(memory))
        if visible:
            known = [memory[device] for device in visible if memory[device] is not None]
            smallest = min((mib for mib in known if mib is not None), default=None)
            gib = None if smallest is None else smallest / MIB_PER_GIB
            return replace(PLATFORMS[name], device_memory_gib=gib)
    return PLATFORMS["cpu"]


def count_devices(
    platform: Platform, *, environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> int:
    """Number of devices of a platform that this process may use, 0 on CPU.

    Args:
        platform: Which devices to count.
        environment: Environment variables, those of this process by default.
        root: Root of the file system in which devices are looked for.

    Raises:
        HwError: If the platform is not one of `PLATFORMS`.
    """
    if platform.name not in PLATFORMS:
        raise HwError(f"platform: got {platform.name!r}, allowed is one of {', '.join(PLATFORMS)}")
    environment = os.environ if environment is None else environment
    present = len(_device_memory_mib(platform.name, environment, root))
    return len(_visible(platform, environment, present))


def _visible(platform: Platform, environment: Mapping[str, str], present: int) -> list[int]:
    """Indices of the devices that the environment leaves visible.

    As in the CUDA driver, entries from the first invalid one on are ignored. An entry that is not a number is
    an identifier of a device; which one it is does not matter for counting.
    """
    listed = environment.get(platform.visible_devices_variable or "")
    if listed is None:
        return list(range(present))
    visible: list[int] = []
    for entry in (item.strip() for item in listed.split(",")):
        index = int(entry) if re.fullmatch(r"\d+", entry) else len(visible)
        if not entry or entry.startswith("-") or index >= present:
            break
        visible.append(index)
    return visible


def _device_memory_mib(name: str, environment: Mapping[str, str], root: Path) -> list[float | None]:
    """Memory of each device that is present, None where it is not known."""
    if name == "cuda":
        return _nvidia_memory_mib(environment, root)
    if name == "rocm" and (root / "dev/kfd").exists():
        return _amd_memory_mib(root)
    if name == "npu":
        return [None] * len(_numbered(root / "dev", r"davinci\d+"))
    return []


def _nvidia_memory_mib(environment: Mapping[str, str], root: Path) -> list[float | None]:
    command = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if command is not None:
        query = [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(
                query, capture_output=True, text=True, timeout=QUERY_DEADLINE_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return []
        return [
            float(line) if re.fullmatch(r"\d+", line) else None for line in answer.stdout.split("\n") if line
        ]
    return [None] * len(_numbered(root / "dev", r"nvidia\d+"))


def _amd_memory_mib(root: Path) -> list[float | None]:
    """From the driver's topology: nodes with SIMDs are GPUs, heap types 1 and 2 their memory."""
    memory: list[float | None] = []
    for node in _numbered(root / "sys/class/kfd/kfd/topology/nodes", r"\d+"):
        if _property(node / "properties", "simd_count") == 0:
            continue
        banks = [bank / "properties" for bank in _numbered(node / "mem_banks", r"\d+")]
        sizes = [_property(bank, "size_in_bytes") for bank in banks if _property(bank, "heap_type") in (1, 2)]
        memory.append(sum(sizes) / 2**20 or None)
    return memory


def _property(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines if " " in line.strip())
    return int(values.get(key, "0"))


def _numbered(directory: Path, pattern: str) -> list[Path]:
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if re.fullmatch(pattern, path.name)]
    return sorted(found, key=lambda path: int(re.sub(r"\D", "", path.name)))
