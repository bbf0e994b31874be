"""What the doctor found, as a table on the screen and as JSON."""

import math
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from roll_launch.doctor.diagnosis import Diagnosis
from roll_launch.doctor.subject import Gap

ADVICE = {
    "batching": "the engine's own: try a smaller max_batch, or its batch-invariant mode",
    "chat template": "one place renders prompts; give the engine token ids, or the same template",
    "dtype": "accept it (rollout.sync_tolerance), or set model.dtype: float32",
    "log-probs": "serve the model with log-probs of sampled tokens",
    "packing": "the learner's own: compare with a smaller learner.micro_batch_tokens",
    "sampling filters": "switch them off in the engine and in generation_config.json",
    "temperature": "engine and learner must divide by the same; a server may give log-probs of before it",
    "tokenisation": "give the engine token ids, and take its ids",
    "unknown": "try another engine or learner (overrides) to find the side that is wrong",
    "weights": "see the weight sync: version and checksum of its receipts",
}


def print_report(diagnosis: Diagnosis, console: Console) -> None:
    """Prints a diagnosis."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("compared", "left"), ("largest", "right"), ("mean", "right"), ("", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # a literal to rich
    for check in diagnosis.checks:
        table.add_row(check.name, *_numbers(check.gap), check.verdict)
    console.print(table)
    drifting, completions = diagnosis.drift
    console.print(
        f"tokenising their text again would have changed {drifting} of {completions} completions",
        markup=False,
    )
    console.print(f"allowed are {diagnosis.tolerance:g} nats on one token", markup=False)
    who = f"{diagnosis.side}: " if diagnosis.side else ""
    if diagnosis.cause is None:
        console.print("[bold]no mismatch[/bold]: engine and learner agree")
        return
    console.print(f"[bold]cause: {diagnosis.cause}[/bold]")
    console.print(f"{who}{diagnosis.statement}; {ADVICE[diagnosis.cause]}", markup=False)


def as_json(diagnosis: Diagnosis) -> dict[str, object]:
    """Returns a diagnosis as JSON takes it: numbers that are not finite are null."""
    drifting, completions = diagnosis.drift
    return {
        "cause": diagnosis.cause,
        "side": diagnosis.side,
        "statement": diagnosis.statement,
        "tolerance": diagnosis.tolerance,
        "drift": {"completions": completions, "changed": drifting},
        "checks": [
            {"name": check.name, "verdict": check.verdict, "gap": _finite(check.gap)}
            for check in diagnosis.checks
        ],
    }


def _numbers(gap: Gap | None) -> tuple[str, str]:
    return ("", "") if gap is None else (f"{gap.largest:.2g}", f"{gap.mean:.2g}")


def _finite(gap: Gap | None) -> dict[str, float | int | None] | None:
    if gap is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(gap).items()}
