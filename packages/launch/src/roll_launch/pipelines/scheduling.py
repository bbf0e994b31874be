"""The scheduler's policy for a stage: group sizes, filters, and deadlines that allow for queues."""

import math

from roll_scheduler import GroupFilter, MeanOutside, OverProvision, SchedulerPolicy, ZeroSpread

from roll_launch.config import FiltersConfig, RlvrStage

FEWEST_FAILURES = 16
"""A batch may always have so many failed attempts; larger ones half as many as they have tickets."""


def training_policy(stage: RlvrStage) -> SchedulerPolicy:
    """Batches of `prompts_per_step` groups."""
    rollout, extra = stage.rollout, stage.rollout.over_provision
    over_provision = None
    if extra is not None:
        over_provision = OverProvision(groups=extra.prompts, members=extra.responses, defer=extra.defer)
    return _policy(
        stage,
        groups=rollout.prompts_per_step,
        group_size=rollout.group_size,
        filters=_filters(rollout.filters),
        over_provision=over_provision,
    )


def evaluation_policy(stage: RlvrStage, prompts: int) -> SchedulerPolicy:
    """One batch of all held-out prompts, in groups of one."""
    return _policy(stage, groups=prompts, group_size=1)


def _policy(
    stage: RlvrStage,
    *,
    groups: int,
    group_size: int,
    filters: tuple[GroupFilter, ...] = (),
    over_provision: OverProvision | None = None,
) -> SchedulerPolicy:
    rollout, rewards, extra = stage.rollout, stage.rewards, over_provision
    tickets = (groups + (extra.groups if extra else 0)) * (group_size + (extra.members if extra else 0))
    # The scheduler's clocks run while a ticket waits in an engine's or a worker's queue, so they allow for as
    # many rounds as the queue may hold, and for one of its own. They also allow for a process that hangs to
    # be found out and replaced, which saves the retries of all that were waiting for it.
    finding_out = stage.health.every_s + stage.health.answer_s
    generating = math.ceil(tickets / (rollout.engine.max_batch * rollout.replicas))
    grading = math.ceil(tickets / (rewards.concurrency * rewards.workers))
    return SchedulerPolicy(
        groups_per_batch=groups,
        group_size=group_size,
        min_members=min(2, group_size),
        retries=rollout.retries,
        generate_deadline_s=rollout.generate_deadline_s * max(1, generating) + finding_out,
        grade_deadline_s=rewards.deadline_s * (1 + grading) + finding_out,
        max_failures=max(FEWEST_FAILURES, tickets // 2),
        filters=filters,
        over_provision=over_provision,
    )


def _filters(config: FiltersConfig) -> tuple[GroupFilter, ...]:
    filters: list[GroupFilter] = []
    if config.zero_spread:
        filters.append(ZeroSpread())
    if config.mean_outside is not None:
        filters.append(MeanOutside(*config.mean_outside))
    return tuple(filters)
