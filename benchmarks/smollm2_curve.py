"""The picture and the table of docs/smollm2.md, from the run directories of the example and of its control.

uv run --with matplotlib python benchmarks/smollm2_curve.py runs/smollm2/full runs/smollm2/control
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
# Text stays text, and the same numbers write the same file.
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "smollm2", "font.size": 10}

from matplotlib import pyplot  # noqa: E402

Series = dict[int, float]

HELDOUT, TRAINING = "eval/accuracy", "critic/score/mean"
SMOOTHED = 5
"""Steps that the training score is averaged over."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the accuracy of a run and of its control.")
    parser.add_argument("run", type=Path, help="run directory of examples/rlvr_smollm2.yaml")
    parser.add_argument("control", type=Path, help="run directory of the same with learning rate 0")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/smollm2.svg"))
    arguments = parser.parse_args()
    runs = {"GRPO": arguments.run, "control, learning rate 0": arguments.control}
    heldout = {name: read(directory, HELDOUT) for name, directory in runs.items()}
    draw(heldout, read(arguments.run, TRAINING), arguments.picture)
    steps = sorted(set().union(*heldout.values()))
    print("| run |" + "".join(f" step {step} |" for step in steps))
    print("|---|" + "---|" * len(steps))
    for name, series in heldout.items():
        print(f"| {name} |" + "".join(f" {series[s]:.3f} |" if s in series else " |" for s in steps))


def read(directory: Path, metric: str) -> Series:
    """The metric of the stage `rlvr` by step."""
    with (directory / "metrics.jsonl").open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["step"]: line[metric] for line in lines if line["stage"] == "rlvr" and metric in line}


def draw(heldout: dict[str, Series], training: Series, picture: Path) -> None:
    """Writes the picture; its form is that of the file's name."""
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    steps = sorted(training)
    recent = [steps[max(0, at - SMOOTHED + 1) : at + 1] for at in range(len(steps))]
    means = [sum(training[step] for step in window) / len(window) for window in recent]
    axes.plot(steps, means, color="#b0c4de", label=f"training score, mean of {SMOOTHED} steps")
    for (name, series), color, marker in zip(heldout.items(), ("#1f4e8c", "#999999"), "os", strict=True):
        points = sorted(series)
        axes.plot(points, [series[step] for step in points], color=color, marker=marker, label=name)
    axes.set(xlabel="step", ylabel="held-out accuracy, one sample", ylim=(0, 1), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
