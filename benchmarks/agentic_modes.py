"""Number guessing for several seeds, with a control, and in four modes: tables of docs/agentic_training.md.

uv run python benchmarks/agentic_modes.py seeds --directory runs/modes
uv run python benchmarks/agentic_modes.py modes --directory runs/modes
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "agentic_number_guessing.yaml"
ASYNCHRONOUS = "stages.rl.rollout.asynchrony={max_staleness: 1}"
GIGPO = (
    "stages.rl.algorithm={preset: gigpo, clip_high: 0.28}",
    "stages.rl.episodes.samples=step_concatenated",
)
MODES: dict[str, tuple[str, ...]] = {
    "synchronous, trajectory": (),
    "synchronous, GiGPO": GIGPO,
    "asynchronous, trajectory": (ASYNCHRONOUS,),
    "asynchronous, GiGPO": (*GIGPO, ASYNCHRONOUS),
}
CONTROL = ("stages.rl.learner.optimizer.learning_rate=0",)


def main() -> None:
    parser = argparse.ArgumentParser(description="Number guessing for seeds and modes.")
    parser.add_argument("what", choices=["seeds", "modes"])
    parser.add_argument("--directory", type=Path, default=Path("runs/modes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=list(MODES), help="of the modes")
    arguments = parser.parse_args()
    print("| run | win rate after steps | processor s | wall s |")
    print("|---|---|---|---|")
    if arguments.what == "seeds":
        for seed in arguments.seeds:
            print(_row(f"seed {seed}", (f"seed={seed}",), arguments.directory), flush=True)
        print(_row("seed 0, learning rate 0", CONTROL, arguments.directory), flush=True)
        return
    for name in arguments.only:
        print(_row(name, MODES[name], arguments.directory), flush=True)


def _row(name: str, overrides: tuple[str, ...], parent: Path) -> str:
    directory = parent / "".join(letter if letter.isalnum() else "-" for letter in name)
    command = [sys.executable, "-m", "roll_launch.cli", "run", str(EXAMPLE), "--run-dir", str(directory)]
    before = os.times()
    subprocess.run(
        [*command, *overrides],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    spent = os.times()
    processor = spent.children_user + spent.children_system - before.children_user - before.children_system
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text("utf-8").splitlines()]
    curve = {line["step"]: line["eval/success_rate"] for line in lines if "eval/success_rate" in line}
    told = ", ".join(f"{step}: {rate:.3f}" for step, rate in sorted(curve.items()))
    return f"| {name} | {told} | {processor:.0f} | {spent.elapsed - before.elapsed:.0f} |"


if __name__ == "__main__":
    main()
