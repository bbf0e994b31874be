"""Metrics of a run as JSON lines and TensorBoard event files."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType


class MetricLog:
    """Writes metrics.jsonl, and event files if asked.

    Args:
        path: The JSON lines file; appended to.
        tensorboard: Directory of event files, one sub-directory a stage; None for none.
    """

    def __init__(self, path: Path, *, tensorboard: Path | None) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._tensorboard = tensorboard
        self._events: dict[str, _EventFile] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """One line: the stage, the step, and its metrics; a value that is not finite is written as null."""
        values = {name: _plain(value) for name, value in metrics.items()}
        self._file.write(json.dumps({"stage": stage, "step": step, **values}) + "\n")
        if self._tensorboard is not None:
            if stage not in self._events:
                self._events[stage] = _EventFile(self._tensorboard / stage)
            self._events[stage].write(step, metrics)

    def begin(self, stage: str, step: int) -> None:
        """Steps of `stage` after `step` come next.

        If they came before, in an attempt that was stopped, a viewer of event files forgets those.
        """
        if self._tensorboard is not None and (self._tensorboard / stage).exists():
            self._events[stage] = _EventFile(self._tensorboard / stage)
            self._events[stage].begin_again(step + 1)

    def sync(self) -> int:
        """Brings all lines to the disk; returns how many bytes they are."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        for events in self._events.values():
            events.close()


class _EventFile:
    """TensorBoard scalars of one stage."""

    def __init__(self, directory: Path) -> None:
        # Costs most of a second; only runs that ask for event files pay it.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(directory))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def begin_again(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._writer.add_event(
            Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))
        )

    def close(self) -> None:
        self._writer.close()


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
