"""Results of several policies as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from roll_scheduler.simulator.result import SimulationResult

__all__ = ["json_report", "table"]

COLUMNS = (
    ("step s", "step_s", "{:.1f}"),
    ("rollout s", "rollout_s", "{:.1f}"),
    ("slots busy", "slot_utilisation", "{:.2f}"),
    ("of step bound", "of_step_bound", "{:.3f}"),
    ("of work bound", "of_work_bound", "{:.3f}"),
    ("of device bound", "of_device_bound", "{:.3f}"),
    ("staleness", "staleness_mean", "{:.2f}"),
    ("aborted", "aborted_share", "{:.3f}"),
    ("wasted", "wasted_share", "{:.3f}"),
    ("kept tokens", "kept_tokens_mean", "{:.0f}"),
    ("left out", "left_out_tokens_mean", "{:.0f}"),
)


def table(results: Sequence[SimulationResult]) -> str:
    """A table in Markdown, one policy a line; speed-ups are of samples per second over the first policy's.

    `of step bound` is given for on-policy runs only: others overlap steps, which the bound does not allow.
    """
    head = ["policy", "speed-up", *(title for title, _, _ in COLUMNS)]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    first = results[0].summary()["samples_per_s"] if results else 0.0
    for result in results:
        summary = result.summary()
        cells = [
            "" if name == "of_step_bound" and summary["staleness_max"] > 0 else shape.format(summary[name])
            for _, name, shape in COLUMNS
        ]
        label = f"{result.policy} *" if result.recreation else result.policy
        faster = summary["samples_per_s"] / first if first else 0.0
        rows.append([label, f"{faster:.2f}", *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["| " + " | ".join(_padded(row, widths)) + " |" for row in rows]
    note = ["", "* re-creation of a published system, not its code"]
    return "\n".join(lines + (note if any(result.recreation for result in results) else []))


def json_report(results: Sequence[SimulationResult]) -> dict[str, Any]:
    """Everything but spans, for `json.dump`: a summary, the bounds and the steps of each policy."""
    return {
        "policies": [
            {
                "policy": result.policy,
                "recreation": result.recreation,
                "replicas": len(result.setting.engines),
                "trainer_devices": result.setting.trainer.devices,
                "total_s": result.total_s,
                "work_bound_s": result.work_bound_s,
                "device_bound_s": result.device_bound_s,
                "streamed": result.streamed,
                "step_bound_s": result.step_bound_s,
                "device_s": dict(result.device_s),
                "staleness": {str(age): count for age, count in result.staleness.items()},
                "summary": result.summary(),
                "steps": [
                    {**asdict(step), "staleness": {str(age): n for age, n in step.staleness.items()}}
                    for step in result.steps
                ],
            }
            for result in results
        ]
    }


def _padded(row: list[str], widths: list[int]) -> list[str]:
    first, *rest = row
    return [
        first.ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)),
    ]
