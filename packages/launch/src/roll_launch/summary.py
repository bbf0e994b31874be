"""How a run ended, and the account of it that is written and shown."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass

from roll_launch.config import RunConfig
from roll_launch.pipelines.stage import StageResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: Outcome(status="failed", cause="RoleDied: actor-0 died ...", detail="...").

    Attributes:
        status: "finished", "failed" or "interrupted".
        cause: The first cause, unless it finished.
        detail: A worker's traceback, or "".
    """

    status: str
    cause: str | None = None
    detail: str = ""


def run_summary(
    config: RunConfig, outcome: Outcome, results: Mapping[str, StageResult], seconds: float
) -> dict[str, object]:
    """What summary.json holds: the last evaluation, totals over all stages, and each stage by itself."""
    timing: dict[str, float] = {}
    evaluation: dict[str, float] = {}
    for result in results.values():
        evaluation |= result.metrics
        for name, spent in result.times.totals().items():
            timing[name] = round(timing.get(name, 0.0) + spent, 3)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return {
        "status": outcome.status,
        "cause": outcome.cause,
        "name": config.name,
        "seed": config.seed,
        "runtime": config.runtime.kind,
        "steps": sum(result.steps for result in results.values()),
        **evaluation,
        "samples": sum(result.samples for result in results.values()),
        "tokens": sum(result.tokens for result in results.values()),
        "seconds": round(seconds, 2),
        **timing,
        "peak_rss_gb": round(max([own, *(result.peak_rss_gb for result in results.values())]), 3),
        "alarms": [
            record.summary()
            for result in results.values()
            for record in sorted(result.alarms.values(), key=lambda record: record.first_step)
        ],
        "stages": {name: _stage_summary(result) for name, result in results.items()},
    }


def account(outcome: Outcome, results: Mapping[str, StageResult], seconds: float) -> str:
    """What was done, in a line: accuracies, samples, tokens, seconds, and alarms if there were any."""
    parts: list[str] = []
    for name, result in results.items():
        values = [value for key, value in result.metrics.items() if key.startswith("eval/accuracy/")]
        if values:
            parts.append(f"{name} accuracy {' -> '.join(f'{value:.3f}' for value in values)}")
    samples = sum(result.samples for result in results.values())
    tokens = sum(result.tokens for result in results.values())
    alarms = [
        f"{record.name} in {stage} ({record.count} step{'' if record.count == 1 else 's'})"
        for stage, result in results.items()
        for record in result.alarms.values()
    ]
    told = ", ".join([*parts, f"{samples:,} samples", f"{tokens:,} tokens", f"{seconds:.0f} s"])
    if alarms:
        told += f"; ALARMS: {', '.join(alarms)}"
    return f"{outcome.status}: {told}"


def _stage_summary(result: StageResult) -> Mapping[str, object]:
    return {
        "steps": result.steps,
        "samples": result.samples,
        "tokens": result.tokens,
        **result.metrics,
        **{name: round(spent, 3) for name, spent in result.times.totals().items()},
        "peak_rss_gb": round(result.peak_rss_gb, 3),
    }
