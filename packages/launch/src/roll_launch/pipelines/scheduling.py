"""The scheduler's policy for a stage: group sizes, filters, and deadlines that allow for queues."""

import math
from dataclasses import replace

from roll_scheduler import (
    AdaptiveDeadline,
    BatchFilter,
    GroupFilter,
    MeanOutside,
    MostUncertain,
    OverProvision,
    PartialRollouts,
    SchedulerPolicy,
    Stragglers,
    TruncatedShare,
    ZeroSpread,
)

from roll_launch.config import AgenticStage, FiltersConfig, RlvrStage, SchedulingConfig, longest_episode_s

FEWEST_FAILURES = 16
"""A batch may always have so many failed attempts; larger ones half as many as they have tickets."""


def training_policy(stage: RlvrStage | AgenticStage) -> SchedulerPolicy:
    """Batches of `prompts_per_step` groups."""
    rollout, extra, asynchrony = stage.rollout, stage.rollout.over_provision, stage.rollout.asynchrony
    over_provision = None
    if extra is not None:
        over_provision = OverProvision(
            groups=extra.prompts, members=extra.responses, defer=extra.defer, adaptive=extra.adaptive
        )
    policy = _policy(
        stage,
        groups=rollout.prompts_per_step,
        group_size=rollout.group_size,
        at_once=_at_once(stage),
    )
    policy = replace(
        policy,
        filters=_filters(rollout.filters),
        batch_filter=_batch_filter(rollout.filters),
        over_provision=over_provision,
        order=rollout.scheduling.order,
        kv_tokens=rollout.scheduling.kv_tokens,
        quarantine_after=rollout.scheduling.quarantine_after,
    )
    if asynchrony is None:
        return replace(policy, stragglers=_stragglers(rollout.scheduling))
    partial = None
    if asynchrony.carry or asynchrony.in_flight == "stop":
        partial = PartialRollouts(max_versions=asynchrony.max_versions, stop_at_cut=asynchrony.carry)
    return replace(
        policy,
        max_staleness=asynchrony.max_staleness,
        stale=asynchrony.stale,
        partial=partial,
        stragglers=_stragglers(rollout.scheduling),
    )


def evaluation_policy(stage: RlvrStage | AgenticStage, prompts: int) -> SchedulerPolicy:
    """One batch of all held-out prompts, in groups of one."""
    return _policy(stage, groups=prompts, group_size=1, at_once=prompts)


def _at_once(stage: RlvrStage | AgenticStage) -> int:
    """Tickets that may be under way at a time."""
    rollout, extra = stage.rollout, stage.rollout.over_provision
    groups, members = float(rollout.prompts_per_step), rollout.group_size
    if rollout.filters.most_uncertain is not None:
        groups /= rollout.filters.most_uncertain
    if rollout.asynchrony is not None:
        groups *= 1 + rollout.asynchrony.max_staleness
    if extra is not None:
        groups, members = groups + extra.prompts, members + extra.responses
    return math.ceil(groups) * members


def _policy(
    stage: RlvrStage | AgenticStage, *, groups: int, group_size: int, at_once: int
) -> SchedulerPolicy:
    rollout = stage.rollout
    # The scheduler's clocks run while a ticket waits in an engine's or a worker's queue, so they allow for as
    # many rounds as the queue may hold, and for one of its own. They also allow for a process that hangs to
    # be found out and replaced, which saves the retries of all that were waiting for it.
    finding_out = stage.health.every_s + stage.health.answer_s
    policy = SchedulerPolicy(
        groups_per_batch=groups,
        group_size=group_size,
        min_members=min(2, group_size),
        retries=rollout.retries,
        max_failures=max(FEWEST_FAILURES, at_once // 2),
        router=rollout.scheduling.router,
        weigh_health=rollout.scheduling.weigh_health,
        wait_deadline_s=rollout.scheduling.wait_deadline_s,
    )
    generating = max(1, math.ceil(at_once / (rollout.engine.max_batch * rollout.replicas)))
    if isinstance(stage, AgenticStage):
        places = stage.episodes.workers * min(each.concurrency for each in stage.environments)
        playing = max(generating, math.ceil(at_once / places))
        return replace(policy, generate_deadline_s=longest_episode_s(stage) * playing + finding_out)
    rewards, adaptive = stage.rewards, stage.rewards.adaptive_deadline
    grading = math.ceil(at_once / (rewards.concurrency * rewards.workers))
    return replace(
        policy,
        generate_deadline_s=rollout.generate_deadline_s * generating + finding_out,
        grade_deadline_s=rewards.deadline_s * (1 + grading) + finding_out,
        adaptive_grading=None
        if adaptive is None
        else AdaptiveDeadline(least_s=adaptive.least_s, factor=adaptive.factor, most_s=adaptive.most_s),
    )


def _stragglers(scheduling: SchedulingConfig) -> Stragglers | None:
    config = scheduling.stragglers
    if config is None:
        return None
    return Stragglers(action=config.action, gain=config.gain, every_s=config.every_s, most=config.most)


def _filters(config: FiltersConfig) -> tuple[GroupFilter, ...]:
    filters: list[GroupFilter] = []
    if config.zero_spread:
        filters.append(ZeroSpread())
    if config.mean_outside is not None:
        filters.append(MeanOutside(*config.mean_outside))
    if config.truncated_share is not None:
        filters.append(TruncatedShare(most=config.truncated_share))
    return tuple(filters)


def _batch_filter(config: FiltersConfig) -> BatchFilter | None:
    return None if config.most_uncertain is None else MostUncertain(share=config.most_uncertain)
