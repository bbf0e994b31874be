"""Policies by name, for the command line: those of this package's core, and re-created peers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll_scheduler.partial import PartialRollouts
from roll_scheduler.planning.elastic import ElasticPolicy
from roll_scheduler.policy import OverProvision, SchedulerPolicy
from roll_scheduler.simulator import overlapped_peers, peers
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.result import SimulationResult
from roll_scheduler.simulator.run import simulate
from roll_scheduler.simulator.setting import Setting
from roll_scheduler.simulator.tail_share import measured_extra_share

__all__ = ["POLICIES", "NamedPolicy", "run_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """What a name stands for.

    Attributes:
        about: One line.
        kind: `"core"` runs `SchedulerCore`; `"peer"` re-creates a published system.
        trainer: `"colocated"` or `"disjoint"`: whether training shares the replicas' devices.
        option: What `NAME=VALUE` sets, None if there is nothing to set.
        default: Its value otherwise.
    """

    about: str
    kind: Literal["core", "peer"]
    trainer: Literal["colocated", "disjoint"]
    option: str | None = None
    default: float = 0.0


MOST_VERSIONS = 1_000_000
"""Versions that a moved completion may span; the bound on staleness limits it."""

POLICIES: Mapping[str, NamedPolicy] = {
    "core": NamedPolicy(about="this package, on-policy", kind="core", trainer="colocated"),
    "core-async": NamedPolicy(
        about="this package, trainer on devices of its own",
        kind="core",
        trainer="disjoint",
        option="max_staleness",
        default=1,
    ),
    "core-carry": NamedPolicy(
        about="this package, what runs at the end of a rollout goes on after the training",
        kind="core",
        trainer="colocated",
        option="max_staleness",
        default=1,
    ),
    "core-first": NamedPolicy(
        about="this package, over-provisioned; what a batch did without is dropped",
        kind="core",
        trainer="colocated",
        option="eta",
        default=1.25,
    ),
    "core-tail": NamedPolicy(
        about="this package, over-provisioned; what a batch did without has a round of its own",
        kind="core",
        trainer="colocated",
        option="eta",
        default=1.25,
    ),
    "core-elastic": NamedPolicy(
        about="this package, on-policy: longest first, devices lent to the trainer; with a share of groups "
        "extra, and rounds for those left over",
        kind="core",
        trainer="colocated",
        option="extra",
        default=0.0,
    ),
    "core-best": NamedPolicy(
        about="core-elastic with the extra share that the tail of the first batch suggests",
        kind="core",
        trainer="colocated",
    ),
    "core-elastic-tail": NamedPolicy(
        about="core-tail with devices lent to the trainer",
        kind="core",
        trainer="colocated",
        option="eta",
        default=1.25,
    ),
    "core-elastic-async": NamedPolicy(
        about="this package, rollouts go on through the training, devices lent to the trainer",
        kind="core",
        trainer="colocated",
        option="max_staleness",
        default=1,
    ),
    "static": NamedPolicy(about="batch dealt to replicas beforehand", kind="peer", trainer="colocated"),
    "queue": NamedPolicy(
        about="any free slot takes the next completion (ROLL Flash)", kind="peer", trainer="colocated"
    ),
    "longest-first": NamedPolicy(
        about="queue that knows all lengths, an oracle", kind="peer", trainer="colocated"
    ),
    "tail-rounds": NamedPolicy(
        about="short rounds with redundancy, long rounds (RollPacker)",
        kind="peer",
        trainer="colocated",
        option="eta",
        default=1.25,
    ),
    "rollpacker": NamedPolicy(
        about="tail rounds with half of the replicas to the trainer once a round (RollPacker)",
        kind="peer",
        trainer="colocated",
        option="eta",
        default=1.25,
    ),
    "partial": NamedPolicy(
        about="larger pool, what is not done goes on in the next step (APRIL, Kimi)",
        kind="peer",
        trainer="colocated",
        option="pool",
        default=1.5,
    ),
    "one-step-off": NamedPolicy(
        about="next batch is generated while this one trains", kind="peer", trainer="disjoint"
    ),
    "capacity": NamedPolicy(
        about="generates on within a number of prompts (AReaL)",
        kind="peer",
        trainer="disjoint",
        option="staleness",
        default=1,
    ),
}
"""`core` and `queue` make the same schedule; the second needs no scheduler."""


def run_policy(
    name: str,
    setting: Setting,
    *,
    steps: int,
    trainer_devices: int,
    value: float | None = None,
    record_spans: bool = False,
) -> SimulationResult:
    """Runs a policy of `POLICIES`.

    Args:
        name: Its name.
        setting: Workload and devices, not split.
        steps: Training steps.
        trainer_devices: Replicas' devices that the trainer gets, where the policy is disjoint.
        value: Of the policy's option; None is the default.
        record_spans: Whether the result has spans.

    Raises:
        SimulationError: If there is no such policy, or it cannot run with these values.
    """
    named = POLICIES.get(name)
    if named is None:
        raise SimulationError(f"policy: got {name!r}, allowed is one of {', '.join(POLICIES)}")
    if value is not None and named.option is None:
        raise SimulationError(f"policy {name}: got the value {value!r}, but it has no option")
    chosen = named.default if value is None else value
    if named.option in ("max_staleness", "staleness") and not float(chosen).is_integer():
        raise SimulationError(f"policy {name}: got {named.option}={chosen!r}, allowed is an integer")
    where = setting.split(trainer_devices) if named.trainer == "disjoint" else setting
    if named.kind == "core":
        label = name if value is None else f"{name}={value:g}"
        if name == "core-best":
            name, label, chosen = "core-elastic", name, measured_extra_share(setting)
        policy = _core_policy(name, where, chosen)
        elastic = _elastic(where) if name.startswith("core-elastic") else None
        return simulate(where, policy, steps=steps, name=label, record_spans=record_spans, elastic=elastic)
    return _run_peer(name, where, steps, chosen, record_spans)


def _elastic(setting: Setting) -> ElasticPolicy:
    """Knows the engines and what changing sides costs."""
    engine = setting.engines[0]
    share = engine.sequence_s / engine.base_s if engine.base_s else 1.0
    return ElasticPolicy(switch_s=setting.trainer.switch_s, sequence_share=share)


def _core_policy(name: str, setting: Setting, value: float) -> SchedulerPolicy:
    moves: dict[str, Any] = {"partial": PartialRollouts(max_versions=MOST_VERSIONS, stop_at_cut=False)}
    groups, members = setting.groups_per_batch, setting.group_size
    if name == "core-elastic":
        if not 0 <= value <= 1:
            raise SimulationError(f"policy {name}: got extra={value!r}, allowed is 0 to 1")
        extra_groups = math.ceil(value * groups - 1e-9)
        extra = OverProvision(groups=extra_groups, defer=True) if extra_groups else None
        return setting.policy(order="longest_first", over_provision=extra, **moves)
    if not name.startswith("core-elastic"):
        moves = {}
    if name not in ("core-first", "core-tail", "core-elastic-tail"):
        return setting.policy(max_staleness=int(value), **moves)
    if not (math.isfinite(value) and value > 1):
        raise SimulationError(f"policy {name}: got eta={value!r}, allowed is > 1")
    # The guard keeps 4/3 * 3 from becoming 5.
    extra = OverProvision(
        groups=math.ceil(value * groups - 1e-9) - groups,
        members=math.ceil(value * members - 1e-9) - members,
        defer=name != "core-first",
    )
    return setting.policy(over_provision=extra, **moves)


def _run_peer(name: str, setting: Setting, steps: int, value: float, record_spans: bool) -> SimulationResult:
    match name:
        case "static":
            return peers.static_split(setting, steps=steps, record_spans=record_spans)
        case "queue":
            return peers.queue(setting, steps=steps, record_spans=record_spans)
        case "longest-first":
            return peers.longest_first(setting, steps=steps, record_spans=record_spans)
        case "tail-rounds":
            return peers.tail_rounds(setting, steps=steps, eta=value, record_spans=record_spans)
        case "rollpacker":
            # What has no slot in the other half waits: the trigger as the paper has it never fires here.
            return peers.tail_rounds(
                setting, steps=steps, eta=value, stream="queues", record_spans=record_spans
            )
        case "partial":
            return peers.partial_rollout(setting, steps=steps, pool=value, record_spans=record_spans)
        case "one-step-off":
            return overlapped_peers.one_step_off(setting, steps=steps, record_spans=record_spans)
        case _:
            return overlapped_peers.capacity(
                setting, steps=steps, staleness=int(value), record_spans=record_spans
            )
