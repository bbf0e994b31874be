"""What one driver costs with hundreds of engines: the tables of docs/controller.md.

The real pipeline of reinforcement learning, with the real scheduler, weight sync, metrics and records, drives
roles that compute nothing (`controller_roles.py`). What is measured is the driver's process.

uv run python benchmarks/controller_scale.py --grid
uv run python benchmarks/controller_scale.py --actors 256 --samples-per-actor 64 --tokens 32768
uv run python benchmarks/controller_scale.py --samples-per-actor 8 --tokens 32 8192 32768 --runtime ray
"""

import argparse
import asyncio
import dataclasses
import io
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from controller_roles import FakeActor, FakeRayRuntime, FakeRewardWorker, FakeRuntime
from rich.console import Console
from roll_launch.config import RlvrStage, RunConfig, load_text
from roll_launch.data import Row
from roll_launch.display import Display
from roll_launch.interrupt import Interrupt
from roll_launch.pipelines.rlvr import RlvrPipeline
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import ModelSpec, Prompt, PromptSet, RlvrPlan
from roll_launch.roles import Runtime
from roll_launch.run_directory import RunDirectory
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits
from roll_rollout import GenerateRequest, SamplingParams

GROUP_SIZE = 16
PROMPT_TOKENS = 512
TICK_S = 0.01
WATCHDOG_EVERY_TICKS = 20
"""Ticks between two descriptions of what is waited for: the watchdog's line, asked for more often."""

ARRIVALS_PER_S = {"local": 2000.0, "ray": 250.0}
"""Completions of a step that end in a second. 256 engines at 2,000 tokens/s would end 16 of 32k tokens."""

RAY_PROCESSES = 4
PHASES = ("gen", "update_actor", "weight_sync")

GRID_ACTORS = (16, 64, 256)
GRID_SAMPLES = (1024, 4096, 16384)

COLUMNS = {
    "runtime": "runtime",
    "actors": "actors",
    "samples": "samples",
    "tokens": "tokens",
    "cpu_us": "driver CPU, us a sample",
    "fakes_us": "of it fakes",
    "late_p50_ms": "late p50 ms",
    "late_p99_ms": "p99",
    "late_max_ms": "max",
    "busy_max_ms": "longest CPU ms",
    "watchdog_ms": "watchdog ms",
    "rss_first_mib": "RSS MiB, step 1",
    "rss_last_mib": "last step",
}

CONFIG = """
name: controller-scale
tracking: {{tensorboard: false, rollouts: true}}
stages:
  - name: rlvr
    pipeline: rlvr
    model: {{source: random, architecture: qwen3, tokenizer: /dev/null}}
    data: {{source: jsonl, path: /dev/null}}
    algorithm: {{preset: grpo}}
    rollout:
      replicas: {actors}
      group_size: {group_size}
      prompts_per_step: {groups}
      max_prompt_tokens: {prompt_tokens}
      sampling: {{max_tokens: {tokens}}}
    rewards: {{grader: {{name: exact}}, workers: {workers}, concurrency: 256}}
    learner: {{optimizer: {{learning_rate: 1.0e-3}}, micro_batch_tokens: {micro_batch_tokens}}}
    steps: {steps}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Scale(runtime="local", actors=256, samples=16384, tokens=32768, steps=3, arrivals_per_s=2000.0)."""

    runtime: str
    actors: int
    samples: int
    tokens: int
    steps: int
    arrivals_per_s: float

    @property
    def longest_s(self) -> float:
        """Seconds that the longest generation takes."""
        return self.samples / self.arrivals_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the driver: seconds, RSS in bytes at its end, and how late ticks of 10 ms came.

    Attributes:
        wall_s: From one step boundary to the next.
        cpu_s: Of all threads of the driver's process.
        rss_bytes: Resident memory at the end, without files and memory that is shared.
        lateness_s: Of each tick during the step.
        busy_s: Longest time of the processor that the event loop took between two ticks.
        watchdog_s: Longest description of what is being waited for.
        phases: Seconds by phase, as in metrics.jsonl.
    """

    wall_s: float
    cpu_s: float
    rss_bytes: int
    lateness_s: tuple[float, ...]
    busy_s: float
    watchdog_s: float
    phases: Mapping[str, float]


class Meter(Interrupt):
    """Measures between the step boundaries, at which the pipeline asks whether it is to stop."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits
        self._marks: list[tuple[float, float, int, int]] = []
        self._lateness: list[float] = []
        self._busy: list[float] = []
        self._watchdog: list[float] = []

    def stop_at_boundary(self) -> None:
        super().stop_at_boundary()
        self.mark()

    def mark(self) -> None:
        """A step begins or ends."""
        self._marks.append((time.perf_counter(), time.process_time(), private_bytes(), len(self._lateness)))
        self._watchdog.append(0.0)

    async def tick(self) -> None:
        """Notes how late it is every 10 ms, until it is cancelled."""
        for number in itertools.count():
            due, busy = time.perf_counter() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self._lateness.append(max(0.0, time.perf_counter() - due))
            self._busy.append(time.thread_time() - busy)
            if number % WATCHDOG_EVERY_TICKS == 0 and self._watchdog:
                began = time.perf_counter()
                self._waits.lines()
                self._watchdog[-1] = max(self._watchdog[-1], time.perf_counter() - began)

    def steps(self, lines: Sequence[Mapping[str, float]]) -> list[Step]:
        """What was measured, with the phases of the run's metrics, a line a step."""
        marks = itertools.pairwise(self._marks)
        return [
            Step(
                wall_s=after[0] - before[0],
                cpu_s=after[1] - before[1],
                rss_bytes=after[2],
                lateness_s=tuple(self._lateness[before[3] : after[3]]),
                busy_s=max(self._busy[before[3] : after[3]], default=0.0),
                watchdog_s=watchdog,
                phases={name: line[f"timing_s/{name}"] for name in (*PHASES, "step")},
            )
            for (before, after), watchdog, line in zip(marks, self._watchdog, lines, strict=False)
        ]


async def measure(scale: Scale) -> list[Step]:
    """Runs the pipeline at a scale; one record a step."""
    config, plan = planned(scale)
    waits = Waits()
    meter = Meter(waits)
    runtime = started(scale)
    with tempfile.TemporaryDirectory(prefix="roll-scale-") as scratch:
        directory = RunDirectory.claim(Path(scratch), now=datetime.now(), exact=Path(scratch))
        with MetricLog(directory.metrics, tensorboard=None) as log:
            context = RunContext(
                config=config,
                directory=directory,
                runtime=runtime,
                waits=waits,
                interrupt=meter,
                log=log,
                display=Display(Console(file=io.StringIO())),
                processors=2,
                run_seconds=lambda: 0.0,
                config_text="",
            )
            ticker = asyncio.create_task(meter.tick())
            try:
                async with waits.watch():
                    await RlvrPipeline(plan, context, None).run()
            finally:
                ticker.cancel()
                await runtime.close()
        meter.mark()
        lines = [json.loads(line) for line in directory.metrics.read_text(encoding="utf-8").splitlines()]
    return meter.steps(lines)


def started(scale: Scale) -> Runtime:
    """The runtime of a scale; Ray's object store holds two steps' completions and is not more than that."""
    if scale.runtime == "local":
        return FakeRuntime(scale.tokens, scale.longest_s)
    step_bytes = scale.samples * (scale.tokens * 8 + 4096)
    return FakeRayRuntime(
        scale.tokens,
        scale.longest_s,
        processes=RAY_PROCESSES,
        object_store_bytes=max(256 << 20, 2 * step_bytes),
    )


def planned(scale: Scale) -> tuple[RunConfig, RlvrPlan]:
    """A stage as a configuration would plan it, with prompts of 512 tokens and no files behind it."""
    text = CONFIG.format(
        actors=scale.actors,
        group_size=GROUP_SIZE,
        groups=scale.samples // GROUP_SIZE,
        prompt_tokens=PROMPT_TOKENS,
        tokens=scale.tokens,
        workers=16 if scale.runtime == "local" else 2,
        micro_batch_tokens=PROMPT_TOKENS + scale.tokens,
        steps=scale.steps,
    )
    config = load_text(text, RunConfig).config
    (stage,) = config.stages
    assert isinstance(stage, RlvrStage)
    nowhere = Path(os.devnull)
    plan = RlvrPlan(
        stage=stage,
        model=ModelSpec(
            path=None, architecture="qwen3", overrides={}, tokenizer=nowhere, dtype="float32", seed=0
        ),
        algorithm=stage.algorithm.algorithm(),
        sampling=SamplingParams(max_tokens=scale.tokens),
        prompts=PromptSet(
            prompts=tuple(prompt(index) for index in range(scale.samples // GROUP_SIZE)), dropped=0
        ),
        heldout=None,
        seed=0,
    )
    return config, plan


def prompt(index: int) -> Prompt:
    """The prompt of row `index`."""
    row = Row(
        prompt="2+2?", messages=None, response=None, reference="4", columns={}, origin=f"memory:{index + 1}"
    )
    return Prompt(key=str(index), row=row, token_ids=np.full(PROMPT_TOKENS, index % 1000, dtype=np.int32))


def private_bytes() -> int:
    """Resident memory of this process without files and shared memory (the object store is both)."""
    pages, shared = (int(word) for word in Path("/proc/self/statm").read_text().split()[1:3])
    return (pages - shared) * resource.getpagesize()


async def alone(scale: Scale) -> float:
    """Seconds of the processor that the local fakes take for a step by themselves, without a driver."""
    actor, worker = FakeActor(scale.tokens, 0.0), FakeRewardWorker()
    prompt_ids, sampling = prompt(0).token_ids, SamplingParams(max_tokens=scale.tokens)

    async def sample(seed: int) -> None:
        request = GenerateRequest(id=f"{seed}", prompt_ids=prompt_ids, seed=seed, sampling=sampling)
        rollout = await actor.generate(request)
        await worker.grade(rollout.completion, "4", {})

    began = time.process_time()
    for seed in range(scale.samples):
        await sample(seed)
    return time.process_time() - began


def summary(scale: Scale) -> dict[str, float | int | str]:
    """Measures a scale in this process; one value a column, of the steps after the first."""
    steps = asyncio.run(measure(scale))
    settled = steps[1:] or steps
    late = np.concatenate([step.lateness_s for step in settled]) * 1e3
    fakes = asyncio.run(alone(scale)) if scale.runtime == "local" else 0.0
    columns: dict[str, float | int | str] = {
        **dataclasses.asdict(scale),
        "wall_s": min(step.wall_s for step in settled),
        "cpu_us": min(step.cpu_s for step in settled) / scale.samples * 1e6,
        "fakes_us": fakes / scale.samples * 1e6,
        "late_p50_ms": float(np.percentile(late, 50)),
        "late_p99_ms": float(np.percentile(late, 99)),
        "late_max_ms": float(late.max()),
        "busy_max_ms": min(step.busy_s for step in settled) * 1e3,
        "watchdog_ms": max(step.watchdog_s for step in steps) * 1e3,
        "rss_first_mib": steps[0].rss_bytes / 2**20,
        "rss_last_mib": steps[-1].rss_bytes / 2**20,
    }
    fastest = min(settled, key=lambda step: step.wall_s)
    return columns | {f"{name}_s": fastest.phases[name] for name in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser(description="What one driver costs with hundreds of engines.")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    parser.add_argument("--actors", type=int, nargs="+", default=[256])
    parser.add_argument("--samples-per-actor", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--tokens", type=int, nargs="+", default=[32768])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--arrivals-per-s", type=float, help="completions that end in a second")
    parser.add_argument("--grid", action="store_true", help="16 to 256 actors with 1,024 to 16,384 samples")
    parser.add_argument("--json", type=Path, help="where the numbers are written too")
    arguments = parser.parse_args()
    pairs = (
        list(itertools.product(GRID_ACTORS, GRID_SAMPLES))
        if arguments.grid
        else [(actors, actors * each) for actors in arguments.actors for each in arguments.samples_per_actor]
    )
    scales = [
        Scale(
            runtime=arguments.runtime,
            actors=actors,
            samples=samples,
            tokens=tokens,
            steps=arguments.steps,
            arrivals_per_s=arguments.arrivals_per_s or ARRIVALS_PER_S[arguments.runtime],
        )
        for actors, samples in pairs
        for tokens in arguments.tokens
    ]
    rows = list(shown(scales))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def shown(scales: Sequence[Scale]) -> Iterator[Mapping[str, float | int | str]]:
    """Measures each scale in a process of its own, and prints the table as it grows."""
    print("| " + " | ".join(COLUMNS.values()) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    costs = []
    for scale in scales:
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
            found = process.submit(summary, scale).result()
        cells = [found[name] for name in COLUMNS]
        print(
            "| " + " | ".join(f"{c:,.0f}" if isinstance(c, float) else f"{c}" for c in cells) + " |",
            flush=True,
        )
        costs.append(float(found["cpu_us"]))
        yield found
    if len(costs) > 1:
        print(f"\nCPU of a sample, most by least: {max(costs) / min(costs):.2f}")


if __name__ == "__main__":
    main()
