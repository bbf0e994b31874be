"""Kills parts of short runs at random instants, and proves from the ledger that nothing is lost or doubled.

    python tests/e2e/kill_campaign.py --victim driver --kills 100

A victim that ends the run (driver, learner) is followed by `roll-launch resume`; the others are replaced
while the run goes on. The tests of `test_kills.py` do the same with fewer kills.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from background_run import BackgroundRun, none_left

PROCESS = {"learner": "TrainerActor", "actor": "RolloutActor", "reward": "RewardActor"}
STAGES = {"pretrain": 12, "rlvr": 24}
TIMINGS = ("timing_s/", "perf/", "scheduler/", "rewards/seconds", "weight_sync/", "rollout/")
LIMIT_S = 240.0

CONFIG = """
name: kills
seed: 7
runtime: RUNTIME
prepare:
  - {callable: "roll_launch.tasks.sort_letters:write_files", directory: data, arguments: {seed: 0}}
stages:
  - name: pretrain
    pipeline: sft
    model: &model
      source: random
      architecture: qwen3
      config: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
        head_dim: 16, intermediate_size: 64, max_position_embeddings: 128, tie_word_embeddings: true}
      tokenizer: data/tokenizer
    data: {source: jsonl, path: data/demonstrations.jsonl}
    learner: &learner {threads: 1, optimizer: {learning_rate: 1.0e-3, schedule: cosine}}
    steps: 12
    batch_size: 16
    max_tokens: 112
    checkpoint: {every: 4, keep: 2}
  - name: rlvr
    pipeline: rlvr
    model: {source: stage, stage: pretrain}
    data: {source: jsonl, path: data/train.jsonl}
    evaluation: {data: {source: jsonl, path: data/heldout.jsonl}, prompts: 16, every: 5}
    algorithm: {preset: grpo}
    rollout:
      engine: {threads: 1}
      group_size: 4
      prompts_per_step: 4
      sampling: {max_tokens: 40}
      max_prompt_tokens: 32
    # So short a model has no answer right; without rewards that differ nothing would be trained.
    rewards: {grader: {name: exact, options: {after: ";"}}, overlong: {buffer_tokens: 36}}
    learner: *learner
    steps: 24
    checkpoint: {every: 2, keep: 2}
    health: {max_replacements: 1000}
"""


@dataclass(slots=True, kw_only=True)
class Report:
    """What a campaign did: Report(victim="driver", kills=[("rlvr", 3), ...], attempts=21, runs=1)."""

    victim: str
    wanted: int
    fewest: int = 0
    until: float = math.inf
    kills: list[tuple[str, int]] = field(default_factory=list)
    attempts: int = 0
    runs: int = 0

    def is_enough(self) -> bool:
        """Whether the kills that were wanted are made, or the fewest and the time for more is used up."""
        late = len(self.kills) >= self.fewest and time.monotonic() > self.until
        return len(self.kills) >= self.wanted or late

    def line(self) -> str:
        """The kills by the stage and step that was last written when they came."""
        at = Counter(stage for stage, _ in self.kills)
        where = ", ".join(f"{count} in {stage}" for stage, count in sorted(at.items()))
        return (
            f"{self.victim}: {len(self.kills)} kills ({where}) over {self.runs} run(s) and {self.attempts} "
            "process start(s); every ledger equal to that of the run without kills"
        )


def campaign(
    victim: str,
    kills: int,
    *,
    runtime: str,
    seed: int,
    workspace: Path,
    fewest: int = 0,
    budget_s: float = math.inf,
) -> Report:
    """Kills `victim` so many times; raises AssertionError if a ledger differs or a process stays.

    Args:
        victim: "driver", "learner", "actor" or "reward".
        kills: How many.
        runtime: "local" (driver only) or "ray".
        seed: Of the instants.
        workspace: Of the runs; with a short path.
        fewest: How many at least, however long they take.
        budget_s: Seconds after which no further kill is made.
    """
    instants = random.Random(seed)
    report = Report(victim=victim, wanted=kills, fewest=fewest, until=time.monotonic() + budget_s)
    (workspace / "kills.yaml").write_text(CONFIG.replace("RUNTIME", runtime))
    reference = _undisturbed(workspace)
    while not report.is_enough():
        report.runs += 1
        directory = workspace / f"run{report.runs}"
        disturb = _replaced if victim in ("actor", "reward") else _resumed
        disturb(report, instants, workspace, directory)
        assert ledger(directory) == ledger(reference)
        assert every_step_once(directory)
        if runtime == "local":
            assert numbers(directory) == numbers(reference)
            assert weights(directory) == weights(reference)
    return report


def ledger(directory: Path) -> list[tuple[object, ...]]:
    """Every trained sample: step, group, member, seed, prompt and the version that sampled it."""
    lines = map(json.loads, (directory / "rollouts" / "rlvr.jsonl").read_text().splitlines())
    names = ("step", "group", "member", "seed", "prompt")
    return [(*(line[name] for name in names), line["versions"][0][0]) for line in lines]


def numbers(directory: Path) -> list[dict[str, object]]:
    """The metrics but for those that measure time or processes."""
    return [
        {name: value for name, value in line.items() if not name.startswith(TIMINGS)}
        for line in _metrics(directory)
    ]


def every_step_once(directory: Path) -> bool:
    """Whether metrics.jsonl has each step of each stage exactly once."""
    steps = [(line["stage"], line["step"]) for line in _metrics(directory) if "actor/lr" in line]
    return steps == [(stage, step) for stage, last in STAGES.items() for step in range(1, last + 1)]


def weights(directory: Path) -> list[bytes]:
    """The models of all stages."""
    return [(directory / "stages" / stage / "model" / "model.safetensors").read_bytes() for stage in STAGES]


def _undisturbed(workspace: Path) -> Path:
    directory = workspace / "reference"
    run = _start(workspace, directory)
    assert run.process.wait(LIMIT_S) == 0, run.screen()
    # Equal weights prove something only if every stage moves them.
    assert len(set(weights(directory))) == len(STAGES), "the rlvr stage has trained nothing"
    return directory


def _resumed(report: Report, instants: random.Random, workspace: Path, directory: Path) -> None:
    """Kills the driver or the learner and goes on with the run, until it ends by itself."""
    while True:
        run = _start(workspace, directory)
        report.attempts += 1
        try:
            if report.is_enough() or not _wait_for_an_instant(run, instants):
                assert run.process.wait(LIMIT_S) == 0, run.screen()
                return
            started = run.descendants()
            if report.victim == "driver":
                run.kill()
            else:
                victims = run.workers(PROCESS[report.victim])
                if not victims:
                    continue
                os.kill(victims[0], signal.SIGKILL)
                if _goes_on(run, directory):
                    continue
                assert run.process.wait(60) == 1, run.screen()
                assert "RoleDied: trainer died" in run.screen().strip().splitlines()[-1], run.screen()
            report.kills.append(_last_step(directory))
            assert none_left(started, limit_s=20)
            assert list((workspace / "t").glob("roll-*")) == []
        finally:
            run.end()


def _goes_on(run: BackgroundRun, directory: Path) -> bool:
    """Whether the run did without the learner: it was that of a stage that had just ended."""
    before, until = _lines(directory), time.monotonic() + 60
    while run.process.poll() is None and time.monotonic() < until:
        # One more line may be on its way; more would need the learner.
        if _lines(directory) > before + 2:
            return True
        time.sleep(0.05)
    return False


def _replaced(report: Report, instants: random.Random, workspace: Path, directory: Path) -> None:
    """Kills actors or reward workers of a run that goes on."""
    run = _start(workspace, directory)
    report.attempts += 1
    started: set[int] = set()
    try:
        while not report.is_enough() and _wait_for_an_instant(run, instants):
            for pid in run.workers(PROCESS[report.victim])[:1]:
                os.kill(pid, signal.SIGKILL)
                report.kills.append(_last_step(directory))
                _wait_for_another(run, PROCESS[report.victim], pid)
            started |= run.descendants()
        assert run.process.wait(LIMIT_S) == 0, run.screen()
        assert none_left(started, limit_s=20)
        assert list((workspace / "t").glob("roll-*")) == []
    finally:
        run.end()


def _start(workspace: Path, directory: Path) -> BackgroundRun:
    """A new run, or, where there is one, its resume. A run killed before it wrote anything begins anew."""
    if (directory / "environment.json").exists():
        arguments = ["resume", str(directory)]
    else:
        shutil.rmtree(directory, ignore_errors=True)
        arguments = ["run", "kills.yaml", "--run-dir", str(directory)]
    return BackgroundRun(arguments, workspace=workspace, directory=directory)


def _wait_for_an_instant(run: BackgroundRun, instants: random.Random) -> bool:
    """Returns at a random instant between now and a few steps from now; False if the run ended before.

    Instants are counted in steps, and not in seconds, so that they spread over the run on any machine. One in
    four comes while the processes still start, or go on without the one that was killed last.
    """
    if instants.random() < 0.25:
        return _still_runs_after(run, instants.uniform(0.2, 6.0))
    aim = _lines(run.directory) + instants.randint(1, 3)
    until = time.monotonic() + LIMIT_S
    while _lines(run.directory) < aim and time.monotonic() < until:
        if run.process.poll() is not None:
            return False
        time.sleep(0.005)
    return _still_runs_after(run, instants.uniform(0.0, 0.6))


def _still_runs_after(run: BackgroundRun, seconds: float) -> bool:
    time.sleep(seconds)
    return run.process.poll() is None


def _wait_for_another(run: BackgroundRun, name: str, gone: int) -> None:
    """Returns when a replacement has a process; what it does by then is left to chance."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and run.process.poll() is None:
        if any(pid != gone for pid in run.workers(name)):
            return
        time.sleep(0.05)


def _lines(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _metrics(directory: Path) -> Iterator[dict[str, object]]:
    return map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())


def _last_step(directory: Path) -> tuple[str, int]:
    lines = (directory / "metrics.jsonl").read_text().splitlines() if _lines(directory) else []
    for line in reversed(lines):
        try:
            values = json.loads(line)
        except ValueError:
            continue
        return str(values["stage"]), int(values["step"])
    return "start", 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--victim", choices=["driver", *PROCESS], required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--runtime", choices=["local", "ray"], default="ray")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    workspace = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    began = time.monotonic()
    report = campaign(
        options.victim, options.kills, runtime=options.runtime, seed=options.seed, workspace=workspace
    )
    print(f"{report.line()}; {time.monotonic() - began:.0f} s")
    shutil.rmtree(workspace)


if __name__ == "__main__":
    main()
