"""The quickstart for several seeds, with a control of learning rate 0: the table of docs/quickstart.md.

uv run python benchmarks/quickstart_seeds.py --directory runs/seeds
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTROL = ("stages.rlvr.learner.optimizer.learning_rate=0",)


def main() -> None:
    parser = argparse.ArgumentParser(description="The quickstart for several seeds, with controls.")
    parser.add_argument("--directory", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--controls", type=int, nargs="*", default=[0], help="seeds that also get a control")
    arguments = parser.parse_args()
    print("| seed | run | before | step 20 | step 40 | step 60 | after | wall s | summary s | peak GiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for seed in arguments.seeds:
        print(_row(seed, "quickstart", (), arguments.directory), flush=True)
        if seed in arguments.controls:
            print(_row(seed, "control, learning rate 0", CONTROL, arguments.directory), flush=True)


def _row(seed: int, name: str, overrides: tuple[str, ...], parent: Path) -> str:
    directory = parent / f"{seed}-{name.partition(',')[0]}"
    began = time.monotonic()
    config = ROOT / "examples" / "quickstart.yaml"
    command = [sys.executable, "-m", "roll_launch.cli", "run", str(config), "--run-dir", str(directory)]
    subprocess.run([*command, f"seed={seed}", *overrides], check=True, stderr=subprocess.DEVNULL)
    wall = time.monotonic() - began
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    lines = [
        json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    accuracy = {line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
    curve = [accuracy[step] for step in (0, 20, 40, 60, 80)]
    cells = [str(seed), name, *(f"{value:.3f}" for value in curve), f"{wall:.0f}"]
    return "| " + " | ".join([*cells, f"{summary['seconds']:.0f}", f"{summary['peak_rss_gb']:.2f}"]) + " |"


if __name__ == "__main__":
    main()
