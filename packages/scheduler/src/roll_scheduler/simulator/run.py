"""Runs the scheduler's core in virtual time, with or without devices that change sides."""

from collections.abc import Callable
from functools import partial

from roll_scheduler.planning.elastic import ElasticPolicy
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.longest_first import LengthEstimator
from roll_scheduler.simulator.elastic_world import ElasticWorld
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.result import SimulationResult
from roll_scheduler.simulator.setting import Setting
from roll_scheduler.simulator.world import World

__all__ = ["simulate"]


def simulate(
    setting: Setting,
    policy: SchedulerPolicy,
    *,
    steps: int,
    name: str = "core",
    groups: int | None = None,
    slots: int | None = None,
    run_seed: int = 0,
    record_spans: bool = False,
    elastic: ElasticPolicy | None = None,
    estimator: LengthEstimator | None = None,
) -> SimulationResult:
    """Runs the scheduler's core for some training steps.

    At `max_staleness` 0 the steps follow each other; above, replicas generate on while a trainer with devices
    of its own trains, or go on after it where it shares theirs. With `elastic`, devices change sides one
    replica at a time, and training on complete groups begins before the batch is whole.

    Args:
        setting: Workload and devices.
        policy: What the core may do; `Setting.policy` makes one without deadlines.
        steps: Training steps, >= 1.
        name: What the result is called.
        groups: Prompts there are; None is without end. The run ends when they are used up.
        slots: Tickets that the core sends to a replica at a time; None is as many as the engine has slots.
            What is more waits in the engine.
        run_seed: Seed of the core.
        record_spans: Whether the result has `spans`.
        elastic: How readily devices change sides; None trains with all of them or with the trainer's own.
        estimator: Predicts lengths for the core, for example an oracle; None leaves it to the core.

    Raises:
        SimulationError: If the sizes of policy and setting differ, a number is out of its range, the trainer
            of an elastic run has devices of its own, or nothing can happen any more.
        SchedulerError: What the core raises: starvation, too many failures, no replica left.
    """
    sizes = (policy.groups_per_batch, policy.group_size)
    if sizes != (setting.groups_per_batch, setting.group_size):
        raise SimulationError(
            f"simulate: the policy has {sizes[0]} groups of {sizes[1]}, the setting "
            f"{setting.groups_per_batch} of {setting.group_size}; allowed are equal sizes (Setting.policy)"
        )
    for what, value in (("steps", steps), ("groups", groups), ("slots", slots)):
        if value is not None and value < 1:
            raise SimulationError(f"simulate: got {what}={value}, allowed is >= 1")
    kind: Callable[..., World] = World if elastic is None else partial(ElasticWorld, elastic=elastic)
    world = kind(
        setting,
        policy,
        groups=groups,
        slots=slots,
        run_seed=run_seed,
        record_spans=record_spans,
        estimator=estimator,
    )
    world.run(steps)
    return world.result(name)
