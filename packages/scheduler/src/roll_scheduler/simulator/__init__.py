"""The scheduler in virtual time: what a policy costs on engines, lengths and trainers that are described.

`simulate` runs this package's core; `peers` and `overlapped_peers` re-create published systems to compare
with, and `bounds` has what no schedule can beat. `roll-simulate` is the command line.

Each name is imported when it is asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roll_scheduler.simulator.attribution import StepAttribution, attribute_step
    from roll_scheduler.simulator.bounds import (
        StepBound,
        device_bound,
        redundant_step_bound,
        speedup_ceiling,
        staleness_bound,
        step_bound,
        work_bound,
        work_seconds,
    )
    from roll_scheduler.simulator.catalogue import POLICIES, NamedPolicy, run_policy
    from roll_scheduler.simulator.engine_model import EngineModel
    from roll_scheduler.simulator.errors import SimulationError
    from roll_scheduler.simulator.flash_bounds import FlashModel
    from roll_scheduler.simulator.lengths import Lengths, LognormalLengths, RecordedLengths
    from roll_scheduler.simulator.overlapped_peers import capacity, one_step_off
    from roll_scheduler.simulator.peers import (
        longest_first,
        partial_rollout,
        queue,
        static_split,
        tail_rounds,
    )
    from roll_scheduler.simulator.picture import bar_chart, gantt, sheet
    from roll_scheduler.simulator.report import json_report, table
    from roll_scheduler.simulator.result import SimulationResult, SlotSpan, StepRecord
    from roll_scheduler.simulator.run import simulate
    from roll_scheduler.simulator.setting import Latency, Outcomes, ReplicaFailure, Setting, Trainer, Workload
    from roll_scheduler.simulator.tail_share import extra_share, measured_extra_share
    from roll_scheduler.simulator.traces import TRACES, LengthDistribution

__all__ = [
    "POLICIES",
    "TRACES",
    "EngineModel",
    "FlashModel",
    "Latency",
    "LengthDistribution",
    "Lengths",
    "LognormalLengths",
    "NamedPolicy",
    "Outcomes",
    "RecordedLengths",
    "ReplicaFailure",
    "Setting",
    "SimulationError",
    "SimulationResult",
    "SlotSpan",
    "StepAttribution",
    "StepBound",
    "StepRecord",
    "Trainer",
    "Workload",
    "attribute_step",
    "bar_chart",
    "capacity",
    "device_bound",
    "extra_share",
    "gantt",
    "json_report",
    "longest_first",
    "measured_extra_share",
    "one_step_off",
    "partial_rollout",
    "queue",
    "redundant_step_bound",
    "run_policy",
    "sheet",
    "simulate",
    "speedup_ceiling",
    "staleness_bound",
    "static_split",
    "step_bound",
    "table",
    "tail_rounds",
    "work_bound",
    "work_seconds",
]

_MODULES = {
    "attribution": "StepAttribution attribute_step",
    "bounds": "StepBound device_bound redundant_step_bound speedup_ceiling step_bound work_bound "
    "staleness_bound work_seconds",
    "catalogue": "POLICIES NamedPolicy run_policy",
    "engine_model": "EngineModel",
    "errors": "SimulationError",
    "flash_bounds": "FlashModel",
    "lengths": "Lengths LognormalLengths RecordedLengths",
    "overlapped_peers": "capacity one_step_off",
    "peers": "longest_first partial_rollout queue static_split tail_rounds",
    "picture": "bar_chart gantt sheet",
    "report": "json_report table",
    "result": "SimulationResult SlotSpan StepRecord",
    "run": "simulate",
    "setting": "Latency Outcomes ReplicaFailure Setting Trainer Workload",
    "tail_share": "extra_share measured_extra_share",
    "traces": "TRACES LengthDistribution",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'roll_scheduler.simulator' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll_scheduler.simulator.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
