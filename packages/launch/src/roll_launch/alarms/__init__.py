"""Alarms of a run: what step metrics show that a person should know while it still trains.

A pipeline hands each step's metrics to a `StageAlarms`; its detectors see faults, its episodes decide what is
told. See docs/alarms.md.
"""

from roll_launch.alarms.alarm import Alarm, AlarmRecord
from roll_launch.alarms.detector import Detector, Reading
from roll_launch.alarms.skipped import SkippedUpdatesError
from roll_launch.alarms.stage import StageAlarms, restored_records

__all__ = [
    "Alarm",
    "AlarmRecord",
    "Detector",
    "Reading",
    "SkippedUpdatesError",
    "StageAlarms",
    "restored_records",
]
