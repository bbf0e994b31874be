"""What `roll-simulate` was asked to do: options as settings, policies and files. Used by the command line."""

import argparse
import json
from dataclasses import replace

from roll_scheduler.simulator.catalogue import POLICIES, run_policy
from roll_scheduler.simulator.engine_model import EngineModel
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.lengths import Lengths, LognormalLengths, RecordedLengths
from roll_scheduler.simulator.peers import static_split
from roll_scheduler.simulator.picture import sheet
from roll_scheduler.simulator.report import json_report
from roll_scheduler.simulator.result import SimulationResult
from roll_scheduler.simulator.setting import Latency, ReplicaFailure, Setting, Trainer, Workload
from roll_scheduler.simulator.traces import TRACES

__all__ = ["listing", "run", "setting_of", "write"]

DRAWN_STEPS = 2
CALIBRATION_STEPS = 4
"""Steps of the static split whose mean rollout `--train-share` refers to."""


def setting_of(options: argparse.Namespace) -> Setting:
    """Workload and devices of the options.

    Raises:
        SimulationError: If a number is out of its range, or the file of lengths cannot be read.
    """
    if options.seed < 0:
        raise SimulationError(f"--seed: got {options.seed}, allowed is >= 0")
    lengths: Lengths = (
        LognormalLengths(TRACES[options.trace], seed=options.seed)
        if options.lengths is None
        else RecordedLengths.read(options.lengths)
    )
    engine = EngineModel(
        slots=options.slots,
        base_s=options.base_ms / 1e3,
        sequence_s=options.sequence_us / 1e6,
        prefill_token_s=options.prefill_us / 1e6,
        kv_tokens=options.kv_tokens,
    )
    if options.replicas < 1:
        raise SimulationError(f"--replicas: got {options.replicas}, allowed is >= 1")
    setting = Setting(
        workload=Workload(
            lengths,
            prompt_tokens=options.prompt_tokens,
            turns=options.turns,
            environment=Latency(mean_s=options.environment_s[0], std_s=options.environment_s[1]),
            reward=Latency(mean_s=options.reward_s[0], std_s=options.reward_s[1]),
            seed=options.seed,
        ),
        engines=(engine,) * options.replicas,
        groups_per_batch=16 * options.replicas if options.prompts is None else options.prompts,
        group_size=options.group_size,
        trainer=Trainer(sample_s=options.sample_s or 0.0, fixed_s=options.fixed_s, switch_s=options.switch_s),
        sync_s=options.sync_s,
        failures=tuple(
            ReplicaFailure(replica=replica, at_s=at_s, back_s=back_s)
            for replica, at_s, back_s in options.failure
        ),
    )
    if options.sample_s is not None:
        return setting
    return replace(setting, trainer=_calibrated(setting, options.train_share))


def run(options: argparse.Namespace, setting: Setting) -> list[SimulationResult]:
    """Runs each policy of the options.

    Raises:
        SimulationError: If a policy is not known, or cannot run with these options.
        SchedulerError: What the core raises: starvation, too many failures, no replica left.
    """
    if options.steps < 1:
        raise SimulationError(f"--steps: got {options.steps}, allowed is >= 1")
    wanted = [name for item in options.policy for name in (POLICIES if item == "all" else (item,))]
    half = len(setting.engines) // 2
    results = []
    for item in wanted:
        name, _, value = item.partition("=")
        results.append(
            run_policy(
                name,
                setting,
                steps=options.steps,
                trainer_devices=half if options.trainer_devices is None else options.trainer_devices,
                value=_number(item, value) if value else None,
                record_spans=options.svg is not None,
            )
        )
    return results


def write(options: argparse.Namespace, results: list[SimulationResult]) -> None:
    """Writes the files that the options name.

    Raises:
        SimulationError: If one cannot be written.
    """
    try:
        if options.json is not None:
            options.json.write_text(json.dumps(json_report(results), indent=1) + "\n", encoding="utf-8")
        if options.svg is not None:
            options.svg.write_text(sheet(results, steps=DRAWN_STEPS), encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"cannot write the report: {error}") from error


def listing() -> str:
    """Names of policies and traces, as text."""
    lines = ["policies (NAME=VALUE sets what is in brackets):"]
    for name, policy in POLICIES.items():
        option = f" [{policy.option}={policy.default:g}]" if policy.option else ""
        kind = "re-created peer" if policy.kind == "peer" else "core"
        lines.append(f"  {name:14} {kind}, {policy.trainer}: {policy.about}{option}")
    lines.append("traces:")
    for name, trace in sorted(TRACES.items()):
        lines.append(
            f"  {name:14} median {trace.median:g}, spread between prompts {trace.prompt_spread:g}, "
            f"within {trace.completion_spread:g}, cap {trace.cap:,}"
        )
    return "\n".join(lines)


def _calibrated(setting: Setting, share: float) -> Trainer:
    """A trainer that takes that share of a static split's step."""
    if not 0 <= share < 1:
        raise SimulationError(f"--train-share: got {share}, allowed is 0 to below 1")
    if share == 0:
        return replace(setting.trainer, sample_s=0.0)
    plain = Workload(setting.workload.lengths, prompt_tokens=setting.workload.prompt_tokens)
    static = static_split(replace(setting, workload=plain, failures=()), steps=CALIBRATION_STEPS)
    samples = setting.groups_per_batch * setting.group_size
    seconds = share / (1 - share) * static.summary()["rollout_s"]
    return replace(setting.trainer, sample_s=seconds * len(setting.engines) / samples)


def _number(item: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise SimulationError(f"--policy {item}: got {value!r}, allowed is a number") from error
