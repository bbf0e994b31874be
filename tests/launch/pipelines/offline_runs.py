"""Stages on given rows, run in this process on tiny models: real data, workers, checkpoints and files."""

import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from roll_launch.config import RunConfig, dump_config, load_text
from roll_launch.display import Display
from roll_launch.history import read_history
from roll_launch.interrupt import Interrupt
from roll_launch.local_runtime import LocalRuntime
from roll_launch.pipelines.choice import pipeline_of
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import plan_stages
from roll_launch.roles import Runtime
from roll_launch.run_directory import RunDirectory
from roll_launch.tasks import sort_letters, sort_letters_preferences
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits

TINY = (
    "{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16, "
    "intermediate_size: 64}"
)
STAGE = """
  - name: {name}
    pipeline: {pipeline}
    model: {{source: random, architecture: qwen3, config: {tiny}, tokenizer: {task}/tokenizer}}
    data: {{source: jsonl, path: {task}/{rows}.jsonl}}
    evaluation: {{data: {{source: jsonl, path: {task}/heldout_{rows}.jsonl}}, rows: 8, every: 2}}
    learner: {{threads: 1, optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 4
    batch_size: 4
    max_tokens: 112
    checkpoint: {{every: 2}}
"""
GENERATION = (
    "{{data: {{source: jsonl, path: {task}/heldout.jsonl}}, prompts: 4, max_prompt_tokens: 32, "
    "engine: {{threads: 1}}, sampling: {{max_tokens: 16}}, "
    "rewards: {{grader: {{name: exact, options: {{after: ';'}}}}}}}}"
)


def write_task(directory: Path) -> Path:
    """Few rows of every kind."""
    sort_letters.write_files(directory, seed=0, demonstrations=24, train=24, heldout=12)
    sort_letters_preferences.write_files(directory, seed=0, train=24, heldout=12)
    (directory / "heldout_demonstrations.jsonl").write_bytes(
        (directory / "demonstrations.jsonl").read_bytes()
    )
    return directory


def configured(task: Path, pipeline: str, rows: str, *overrides: str) -> RunConfig:
    """One stage, called after its pipeline."""
    text = "name: test\nstages:\n" + STAGE.format(
        name=pipeline, pipeline=pipeline, tiny=TINY, task=task, rows=rows
    )
    return load_text(text, RunConfig, [f"stages.{pipeline}.{each}" for each in overrides]).config


async def run_stages(
    config: RunConfig, root: Path, *, runtime: Runtime | None = None, stop_after: int | None = None
) -> dict[str, StageResult]:
    """Runs every stage, or goes on with a run that is in `root` already.

    With `stop_after` the last stage is stopped after so many steps, as by a signal.
    """
    text = dump_config(config)
    directory = RunDirectory(root=root)
    if not root.exists():
        directory = RunDirectory.claim(root, now=datetime.now(), exact=root)
    plans = plan_stages(config, directory)
    history = read_history(directory, text, plans)
    runtime = runtime or LocalRuntime()
    results = {}
    with MetricLog(directory.metrics, tensorboard=None) as log:
        context = RunContext(
            config=config,
            directory=directory,
            runtime=runtime,
            waits=Waits(),
            interrupt=Interrupt() if stop_after is None else _StopAfter(stop_after),
            log=log,
            display=Display(Console(file=io.StringIO())),
            processors=2,
            run_seconds=lambda: 0.0,
            config_text=text,
        )
        try:
            for plan in plans:
                past = history.get(plan.stage.name)
                if past is not None and past.finished:
                    continue
                pipeline = pipeline_of(plan, context, past)
                await pipeline.run()
                results[plan.stage.name] = pipeline.result
                await runtime.stop_roles()
        finally:
            await runtime.close()
    return results


def logged(root: Path, stage: str) -> list[Mapping[str, float]]:
    """Metrics of a stage, the latest line of each step, without times."""
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["stage"] == stage]
    timed = ("timing_s/", "perf/", "rollout/", "scheduler/")
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in kept]


class _StopAfter(Interrupt):
    """A signal that comes while step number `steps` runs."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def stop_at_boundary(self) -> None:
        super().stop_at_boundary()
        self._left -= 1
        self.requested = self._left <= 0


def numbers(lines: Sequence[Mapping[str, float]]) -> dict[tuple[int, str], float]:
    """By step and name."""
    return {
        (int(line["step"]), k): v for line in lines for k, v in line.items() if k not in ("stage", "step")
    }


RLVR = """
  - name: rlvr
    pipeline: rlvr
    model: {{source: random, architecture: qwen3, config: {tiny}, tokenizer: {task}/tokenizer}}
    data: {{source: jsonl, path: {task}/train.jsonl}}
    algorithm: {{preset: {preset}}}
    rollout:
      engine: {{threads: 1}}
      group_size: 2
      prompts_per_step: 2
      max_prompt_tokens: 32
      sampling: {{max_tokens: 8}}
    rewards: {{grader: {{name: length, options: {{unit: characters, longest: 2, margin: 4}}}}}}
    learner: {{threads: 1, optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 4
    checkpoint: {{every: 2}}
"""


def configured_rlvr(task: Path, preset: str, *overrides: str, before: str = "") -> RunConfig:
    """A stage of reinforcement learning, after stages as text."""
    text = "name: test\nstages:\n" + before + RLVR.format(tiny=TINY, task=task, preset=preset)
    return load_text(text, RunConfig, [f"stages.rlvr.{each}" for each in overrides]).config
