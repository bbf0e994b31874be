"""Metric lines and event files."""

import json
from pathlib import Path

from roll_launch.tracking import MetricLog


def test_each_step_is_one_json_line_and_nan_is_null(tmp_path: Path) -> None:
    with MetricLog(tmp_path / "metrics.jsonl", tensorboard=None) as log:
        log.log("sft", 1, {"actor/nll": 2.5})
        log.log("sft", 2, {"actor/nll": float("nan")})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"stage": "sft", "step": 1, "actor/nll": 2.5},
        {"stage": "sft", "step": 2, "actor/nll": None},
    ]


def test_event_files_hold_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tb") as log:
        log.log("rlvr", 1, {"critic/score/mean": 0.5})
        log.log("rlvr", 2, {"critic/score/mean": 0.75})
    events = EventAccumulator(str(tmp_path / "tb" / "rlvr"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("critic/score/mean")] == [
        (1, 0.5),
        (2, 0.75),
    ]
