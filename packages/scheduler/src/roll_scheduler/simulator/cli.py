"""`roll-simulate`: policies side by side on a trace or on the lengths of a real run."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from roll_scheduler.errors import SchedulerError
from roll_scheduler.simulator.catalogue import POLICIES, run_policy
from roll_scheduler.simulator.engine_model import EngineModel
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.lengths import TRACES, Lengths, LognormalLengths, RecordedLengths
from roll_scheduler.simulator.peers import static_split
from roll_scheduler.simulator.picture import sheet
from roll_scheduler.simulator.report import json_report, table
from roll_scheduler.simulator.result import SimulationResult
from roll_scheduler.simulator.setting import Latency, ReplicaFailure, Setting, Trainer, Workload

__all__ = ["main"]

EXIT_BAD_INPUT = 2
DRAWN_STEPS = 2
CALIBRATION_STEPS = 4
"""Steps of the static split whose mean rollout `--train-share` refers to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, or 2 where the input is bad or a policy cannot go on."""
    options = _parser().parse_args(arguments)
    if options.list:
        print(_listing())
        return 0
    try:
        setting = _setting(options)
        results = _run(options, setting)
        print(table(results))
        _write(options, results)
    except SchedulerError as error:
        print(f"roll-simulate: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-simulate",
        description="Runs scheduling policies in virtual time on modelled engines and compares them.",
    )
    parser.add_argument("--version", action="version", version=metadata.version("roll-scheduler"))
    parser.add_argument("--list", action="store_true", help="names of policies and traces, then exit")
    work = parser.add_argument_group("work")
    work.add_argument("--trace", choices=sorted(TRACES), default="A", help="distribution of lengths")
    work.add_argument("--lengths", type=Path, metavar="FILE", help="rollouts file of a real run instead")
    work.add_argument("--prompts", type=int, help="prompts a step; 16 a replica")
    work.add_argument("--group-size", type=int, default=16, help="completions a prompt")
    work.add_argument("--prompt-tokens", type=int, default=0)
    work.add_argument("--turns", type=int, default=1, help="generations a completion; peers allow one")
    work.add_argument("--environment-s", type=_latency, default=Latency(), metavar="MEAN[,STD]")
    work.add_argument("--reward-s", type=_latency, default=Latency(), metavar="MEAN[,STD]")
    policy = parser.add_argument_group("policies")
    policy.add_argument(
        "--policy",
        nargs="+",
        default=["core"],
        metavar="NAME[=VALUE]",
        help="see --list; `all` is all of them",
    )
    policy.add_argument("--steps", type=int, default=10, help="training steps")
    policy.add_argument("--seed", type=int, default=0, help="of lengths and latencies, >= 0")
    devices = parser.add_argument_group("devices")
    devices.add_argument("--replicas", type=int, default=16)
    devices.add_argument("--slots", type=int, default=64, help="sequences a replica decodes at a time")
    devices.add_argument("--base-ms", type=float, default=10.0, help="of an iteration")
    devices.add_argument("--sequence-us", type=float, default=50.0, help="that a sequence adds to it")
    devices.add_argument("--prefill-us", type=float, default=0.0, help="a token")
    devices.add_argument("--kv-tokens", type=int, help="tokens whose KV fits a replica; unlimited")
    devices.add_argument("--sync-s", type=float, default=0.0, help="of sending weights")
    devices.add_argument("--sample-s", type=float, help="of training on a sample with one replica's devices")
    devices.add_argument("--fixed-s", type=float, default=0.0, help="of an optimizer step on all devices")
    devices.add_argument(
        "--switch-s", type=float, default=0.0, help="in which a device that changes sides does neither"
    )
    devices.add_argument(
        "--train-share",
        type=float,
        default=0.3,
        help="without --sample-s: share of a static split's step that is training",
    )
    devices.add_argument(
        "--trainer-devices", type=int, help="replicas' devices for a disjoint trainer; half of them"
    )
    devices.add_argument(
        "--failure",
        type=_failure,
        action="append",
        default=[],
        metavar="REPLICA@S[:BACK]",
        help="it dies then",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="summaries and steps")
    output.add_argument("--svg", type=Path, metavar="FILE", help="bars, and slots in the first two steps")
    return parser


def _setting(options: argparse.Namespace) -> Setting:
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
            environment=options.environment_s,
            reward=options.reward_s,
            seed=options.seed,
        ),
        engines=(engine,) * options.replicas,
        groups_per_batch=16 * options.replicas if options.prompts is None else options.prompts,
        group_size=options.group_size,
        trainer=Trainer(sample_s=options.sample_s or 0.0, fixed_s=options.fixed_s, switch_s=options.switch_s),
        sync_s=options.sync_s,
        failures=tuple(options.failure),
    )
    if options.sample_s is not None:
        return setting
    return replace(setting, trainer=_calibrated(setting, options.train_share))


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


def _run(options: argparse.Namespace, setting: Setting) -> list[SimulationResult]:
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


def _write(options: argparse.Namespace, results: list[SimulationResult]) -> None:
    try:
        if options.json is not None:
            options.json.write_text(json.dumps(json_report(results), indent=1) + "\n", encoding="utf-8")
        if options.svg is not None:
            options.svg.write_text(sheet(results, steps=DRAWN_STEPS), encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"cannot write the report: {error}") from error


def _listing() -> str:
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


def _number(item: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise SimulationError(f"--policy {item}: got {value!r}, allowed is a number") from error


def _latency(text: str) -> Latency:
    mean, _, spread = text.partition(",")
    try:
        return Latency(mean_s=float(mean), std_s=float(spread or 0))
    except (ValueError, SimulationError) as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed is MEAN or MEAN,STD, both >= 0") from error


def _failure(text: str) -> ReplicaFailure:
    replica, _, times = text.partition("@")
    at, _, back = times.partition(":")
    try:
        return ReplicaFailure(replica=int(replica), at_s=float(at), back_s=float(back) if back else None)
    except (ValueError, SimulationError) as error:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, allowed is REPLICA@SECONDS or REPLICA@SECONDS:SECONDS"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
