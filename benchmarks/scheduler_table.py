"""Policies side by side on traces A to D: deterministic, in virtual time, printed as Markdown.

    python benchmarks/scheduler_table.py --replicas 16 --steps 50
    python benchmarks/scheduler_table.py --traces A C --switch-s 0 2 5 10 --policies rollpacker core-elastic

Every replica has 64 slots and iterations of 10 ms + 50 us a sequence. Prompts grow with the replicas, so that
the load of each stays the same: 16 prompts x 16 completions a replica on A, B and C, 8 x 8 on D. Training
takes 30 % of the step of a static split. A device that changes sides loses `--switch-s`, computing KV again
takes 20 us a token, an optimizer step 1 s of all devices and a weight sync 2 s.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

from roll_scheduler.simulator import (
    TRACES,
    EngineModel,
    LognormalLengths,
    Setting,
    SimulationResult,
    Trainer,
    Workload,
    run_policy,
    staleness_bound,
    static_split,
    work_bound,
)

ENGINE = EngineModel(slots=64, base_s=0.010, sequence_s=50e-6, prefill_token_s=20e-6)
FIXED_S, SYNC_S = 1.0, 2.0
TRAIN_SHARE = 0.3
SETTLED = 0.2
"""Part of a run after which it is in its steady state."""

POLICIES = (
    "static", "queue", "tail-rounds", "rollpacker", "core", "core-tail", "core-elastic", "core-best",
    "core-elastic-tail", "partial", "one-step-off", "capacity=1", "core-async", "core-carry",
    "core-elastic-async",
)  # fmt: skip

HEAD = (
    "| policy | speed-up | step s | of work bound | steady | of both bounds | staleness | tokens a sample "
    "| wasted | prompts |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
)


def setting_of(trace: str, replicas: int, *, switch_s: float, seed: int = 0) -> Setting:
    """The devices and the work, with training calibrated at 16 replicas.

    Args:
        trace: A to D.
        replicas: Number of replicas.
        switch_s: Seconds for a device to change sides.
        seed: Of the lengths.
    """
    prompts, size = (8, 8) if trace == "D" else (16, 16)

    def make(count: int, trainer: Trainer) -> Setting:
        return Setting(
            workload=Workload(LognormalLengths(TRACES[trace], seed=seed)),
            engines=(ENGINE,) * count,
            groups_per_batch=prompts * count,
            group_size=size,
            trainer=trainer,
            sync_s=SYNC_S,
        )

    static = static_split(replace(make(16, Trainer()), sync_s=0.0), steps=4)
    seconds = TRAIN_SHARE / (1 - TRAIN_SHARE) * static.summary()["rollout_s"]
    trainer = Trainer(sample_s=seconds / (prompts * size), fixed_s=FIXED_S, switch_s=switch_s)
    return make(replicas, trainer)


def steady_share(result: SimulationResult) -> float:
    """Work bound of the later steps as a share of their time."""
    steps = result.steps[int(len(result.steps) * SETTLED) :]
    bound = work_bound(
        result.setting,
        steps=len(steps),
        samples=sum(step.samples for step in steps),
        tokens=sum(step.tokens for step in steps),
    )
    return bound / sum(step.step_s for step in steps)


def both_share(result: SimulationResult) -> float:
    """The greater of the work bound and that of staleness as a share of the run.

    The bound of staleness is that of the greatest staleness that was met.
    """
    size, tokens = result.setting.group_size, result.setting.workload.tokens
    longest = [
        max(tokens(group, member) for group in groups for member in range(size)) for groups in result.groups
    ]
    oldest = max(max(step.staleness, default=0) for step in result.steps)
    whole = not any(step.wasted_tokens for step in result.steps)  # else the longest may have been left out
    stale = staleness_bound(result.setting, longest, max_staleness=oldest) if whole else 0.0
    return max(result.work_bound_s, stale) / result.total_s


def prompts_of(result: SimulationResult) -> str:
    """Whether each prompt was trained on once, and how many earlier ones were still to come at the end."""
    trained = [group for groups in result.groups for group in groups]
    if len(set(trained)) != len(trained):
        return "some twice"
    late = max(trained) + 1 - len(trained)
    return "each once" if late == 0 else f"each once, {late} to come"


def row(result: SimulationResult, first: float) -> str:
    """A line of the table."""
    summary = result.summary()
    name = f"{result.policy} *" if result.recreation else result.policy
    return (
        f"| {name} | {summary['samples_per_s'] / first:.2f} | {summary['step_s']:.1f} | "
        f"{summary['of_work_bound']:.3f} | {steady_share(result):.3f} | {both_share(result):.3f} | "
        f"{summary['staleness_mean']:.2f} | "
        f"{summary['kept_tokens_mean']:.0f} | {summary['wasted_share']:.3f} | {prompts_of(result)} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one table for each trace, number of replicas and switching time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", nargs="+", choices=sorted(TRACES), default=sorted(TRACES))
    parser.add_argument("--replicas", nargs="+", type=int, default=[16])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--switch-s", nargs="+", type=float, default=[5.0])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME[=VALUE]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds a policy, not deterministic")
    options = parser.parse_args(arguments)
    for trace in options.traces:
        for replicas in options.replicas:
            for switch_s in options.switch_s:
                setting = setting_of(trace, replicas, switch_s=switch_s, seed=options.seed)
                print(f"\nTrace {trace}, {replicas} replicas, {options.steps} steps, switch {switch_s:g} s\n")
                print(HEAD)
                first = 0.0
                for item in options.policies:
                    name, _, value = item.partition("=")
                    began = time.process_time()
                    result = run_policy(
                        name,
                        setting,
                        steps=options.steps,
                        trainer_devices=replicas // 2,
                        value=float(value) if value else None,
                    )
                    first = first or result.summary()["samples_per_s"]
                    spent = f" {time.process_time() - began:.1f}" if options.cpu else ""
                    print(row(result, first) + spent, flush=True)


if __name__ == "__main__":
    main()
