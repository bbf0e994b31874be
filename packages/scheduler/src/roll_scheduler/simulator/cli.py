"""`roll-simulate`: policies side by side on a trace or on the lengths of a real run."""

import argparse
import math
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from roll_scheduler.errors import SchedulerError
from roll_scheduler.simulator.traces import TRACES

__all__ = ["main"]

EXIT_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, or 2 where the input is bad or a policy cannot go on."""
    options = _parser().parse_args(arguments)
    # What simulates needs numpy, what parses does not.
    from roll_scheduler.simulator import invocation
    from roll_scheduler.simulator.report import table

    if options.list:
        print(invocation.listing())
        return 0
    try:
        results = invocation.run(options, invocation.setting_of(options))
        print(table(results))
        invocation.write(options, results)
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
    work.add_argument("--environment-s", type=_latency, default=(0.0, 0.0), metavar="MEAN[,STD]")
    work.add_argument("--reward-s", type=_latency, default=(0.0, 0.0), metavar="MEAN[,STD]")
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


def _latency(text: str) -> tuple[float, float]:
    mean, _, spread = text.partition(",")
    try:
        values = float(mean), float(spread or 0)
    except ValueError:
        values = (-1.0, 0.0)
    if not all(0 <= value < math.inf for value in values):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed is MEAN or MEAN,STD, both >= 0")
    return values


def _failure(text: str) -> tuple[int, float, float | None]:
    replica, _, times = text.partition("@")
    at, _, back = times.partition(":")
    try:
        values = int(replica), float(at), float(back) if back else None
    except ValueError:
        values = -1, 0.0, None
    if not (values[1] > 0 and (values[2] is None or values[2] > values[1])):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, allowed is REPLICA@SECONDS or REPLICA@SECONDS:SECONDS"
        )
    return values


if __name__ == "__main__":
    sys.exit(main())
