"""Which devices a role gets: a strict parser of plans such as `cuda:0-3,6`. Called when a run is checked."""

import re
from dataclasses import dataclass

from roll_hw.errors import HwError
from roll_hw.platform import PLATFORMS, Platform

__all__ = ["DevicePlan", "parse_device_plan"]

FORM = "allowed is 'cpu' or devices such as '0', '0-3' or 'cuda:0-3,6'"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """Devices of one role, for example `DevicePlan(platform="cuda", devices=(0, 1, 2, 3, 6))`.

    Attributes:
        platform: Name of the platform.
        devices: Indices among the visible devices, in the order written; empty on CPU.
    """

    platform: str
    devices: tuple[int, ...]


def parse_device_plan(text: str, *, platform: Platform, available: int) -> DevicePlan:
    """The plan that a text stands for.

    Args:
        text: `"cpu"`, or indices and ranges (both ends included) with commas, after an optional platform.
        platform: Platform of the machine.
        available: Number of devices there; none on CPU.

    Raises:
        HwError: If the text is malformed, names another platform, a device twice, or one that is not there.
    """
    if text.strip() == "cpu":
        return DevicePlan(platform="cpu", devices=())
    prefix, _, listed = text.strip().rpartition(":")
    if prefix and prefix not in (platform.name, platform.torch_device):
        if prefix in PLATFORMS:
            raise HwError(f"device plan {text!r} is for {prefix}, but the platform here is {platform.name}")
        raise HwError(f"device plan {text!r} names {prefix!r}, which is no platform; {FORM}")
    available = 0 if platform.name == "cpu" else available
    devices: list[int] = []
    for item in listed.split(","):
        first, last = _ends(item.strip(), text)
        if last >= available:
            there = f"there are {available}: {_span(0, available - 1)}" if available else "there is none"
            missing = _span(max(first, available), last)
            raise HwError(f"device plan {text!r}: {platform.name} device {missing} is not there, {there}")
        devices.extend(range(first, last + 1))
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        raise HwError(f"device plan {text!r} names {twice} more than once")
    return DevicePlan(platform=platform.name, devices=tuple(devices))


def _ends(item: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", item)
    if match is None:
        raise HwError(f"device plan {text!r}: got {item!r}, {FORM}")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise HwError(f"device plan {text!r}: the range {item!r} runs backwards")
    return first, last


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
