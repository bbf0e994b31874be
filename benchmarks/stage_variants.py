"""One stage of an example with other settings, from the same models: the tables of docs/preference.md,
docs/distillation.md and docs/critics.md.

uv run python benchmarks/stage_variants.py preference --directory runs/variants
uv run --with matplotlib python benchmarks/stage_variants.py critics --picture docs/images/critics.svg

The stages before it run once a seed; then each variant runs in one process (`runtime: local`).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
METRIC = "eval/accuracy"
Variant = tuple[str, str, Mapping[str, Any]]
"""Name, example, and dotted keys of its last stage."""

DPO, KTO = "dpo_sort_letters.yaml", "kto_sort_letters.yaml"
DISTILL, OPD = "distill_sort_letters.yaml", "opd_sort_letters.yaml"
PPO, APPO, GRPO = "ppo_sort_letters.yaml", "appo_sort_letters.yaml", "quickstart.yaml"


def _objective(preset: str, **values: float) -> Mapping[str, Any]:
    return {"objective": {"preset": preset, **values}}


def _divergence(name: str, top_k: int | None = 8) -> Mapping[str, Any]:
    objective = {"divergence": name, "weight": 1.0, "top_k": top_k}
    return {"objective": objective, "teachers.0.placement": "own" if top_k else "trainer"}


TABLES: Mapping[str, Sequence[Variant]] = {
    "preference": (
        ("dpo, beta 0.1", DPO, {}),
        ("dpo, beta 0.5", DPO, _objective("dpo", beta=0.5)),
        ("cdpo", DPO, _objective("cdpo")),
        ("robust_dpo", DPO, _objective("robust_dpo")),
        ("hinge", DPO, _objective("hinge")),
        ("ipo", DPO, _objective("ipo")),
        ("simpo", DPO, _objective("simpo")),
        ("orpo", DPO, _objective("orpo")),
        ("kto", KTO, {}),
        ("control, learning rate 0", DPO, {"learner.optimizer.learning_rate": 0.0}),
    ),
    "distillation": (
        ("forward_kl", DISTILL, {}),
        ("forward_kl, renormalised", DISTILL, _divergence("forward_kl")),
        ("reverse_kl, renormalised", DISTILL, _divergence("reverse_kl")),
        ("generalised_js, renormalised", DISTILL, _divergence("generalised_js")),
        ("adaptive_kl, renormalised", DISTILL, _divergence("adaptive_kl")),
        ("forward_kl, all logits", DISTILL, _divergence("forward_kl", top_k=None)),
        ("reverse_kl, all logits", DISTILL, _divergence("reverse_kl", top_k=None)),
        ("negative log-likelihood alone", DISTILL, {"objective.weight": 0.0}),
        ("on-policy, pure", OPD, {}),
        ("on-policy, with rewards", OPD, {"algorithm": {"preset": "reinforce"}}),
        ("rewards alone", OPD, {"algorithm": {"preset": "reinforce"}, "teachers": []}),
    ),
    "critics": (("GRPO", GRPO, {}), ("PPO", PPO, {}), ("AsyPPO", APPO, {})),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One stage with other settings, from the same models.")
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--directory", type=Path, default=Path("runs/variants"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", help="names of variants")
    parser.add_argument("--picture", type=Path, help="also draws the curves")
    arguments = parser.parse_args()
    variants = [each for each in TABLES[arguments.table] if not arguments.only or each[0] in arguments.only]
    curves: dict[str, dict[int, list[float]]] = {}
    header = False
    for name, example, changes in variants:
        for seed in arguments.seeds:
            summary, curve = _run(arguments.directory, name, example, changes, seed)
            if not header:
                print("| variant | seed |" + "".join(f" step {step} |" for step in curve) + " s | peak GiB |")
                print("|---|---|" + "---|" * (len(curve) + 2))
                header = True
            cells = [f"{value:.3f}" for value in curve.values()]
            cells += [f"{summary['seconds']:.0f}", f"{summary['peak_rss_gb']:.2f}"]
            print(f"| {name} | {seed} | " + " | ".join(cells) + " |", flush=True)
            for step, value in curve.items():
                curves.setdefault(name, {}).setdefault(step, []).append(value)
    if arguments.picture:
        draw(curves, arguments.picture)


def _run(
    directory: Path, name: str, example: str, changes: Mapping[str, Any], seed: int
) -> tuple[Mapping[str, Any], dict[int, float]]:
    """The summary of the variant and its accuracy by step."""
    config = yaml.safe_load((EXAMPLES / example).read_text(encoding="utf-8"))
    *before, stage = config["stages"]
    kept = "-".join(each["name"] for each in before)
    first = directory / f"{kept}-{seed}"
    if not _finished(first):
        _launch({**config, "stages": before}, first, seed)
    for key, value in changes.items():
        _set(stage, key.split("."), value)
    alone = _with_paths(stage, first)
    run = directory / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
    if not _finished(run):
        _launch({**config, "stages": [alone]}, run, seed)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return summary, {line["step"]: line[METRIC] for line in lines if METRIC in line}


def _finished(run: Path) -> bool:
    summary = run / "summary.json"
    return summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["status"] == "finished"


def _launch(config: Mapping[str, Any], directory: Path, seed: int) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    file = directory.with_suffix(".yaml")
    file.write_text(yaml.safe_dump({**config, "seed": seed, "runtime": {"kind": "local"}}), encoding="utf-8")
    command = [sys.executable, "-m", "roll_launch.cli", "run", str(file), "--run-dir", str(directory)]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{directory.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def _set(tree: Any, keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree[int(key) if isinstance(tree, list) else key]
    tree[keys[-1]] = value


def _with_paths(tree: Any, run: Path) -> Any:
    """The stage with the models of the stages before it as directories."""
    if isinstance(tree, list):
        return [_with_paths(each, run) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("source") == "stage":
        return {"source": "pretrained", "path": str(run / "stages" / tree["stage"] / "model")}
    return {key: _with_paths(value, run) for key, value in tree.items()}


def draw(curves: Mapping[str, Mapping[int, Sequence[float]]], picture: Path) -> None:
    """Mean over seeds, and the range as a band."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same numbers write the same file.
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": picture.stem, "font.size": 10}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for name, curve in curves.items():
        steps = sorted(curve)
        means = [sum(curve[step]) / len(curve[step]) for step in steps]
        (line,) = axes.plot(steps, means, marker="o", markersize=3, label=name)
        lows, highs = [min(curve[step]) for step in steps], [max(curve[step]) for step in steps]
        axes.fill_between(steps, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="held-out accuracy, one sample", ylim=(0, 1), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
