"""Re-creations of published schedulers on the same engine model, to compare with. None uses our core.

Each is our reading of a paper in a few lines, not the authors' code: batches are cut by whole groups, grading
takes no time, and there are no failures. Here the trainer has the replicas' devices between two rollouts; for
those with devices of its own see `overlapped_peers`.
"""

import math
from collections.abc import Callable
from typing import Literal

from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.half_stream import HalfStream
from roll_scheduler.simulator.peer_run import PeerRun, completed
from roll_scheduler.simulator.result import SimulationResult
from roll_scheduler.simulator.setting import Setting
from roll_scheduler.simulator.slot_queue import Completion

__all__ = ["longest_first", "partial_rollout", "queue", "static_split", "tail_rounds"]


def static_split(setting: Setting, *, steps: int, record_spans: bool = False) -> SimulationResult:
    """Every replica gets an equal run of the batch before the step; no replica helps another."""
    run = PeerRun(setting, "static split", record_spans=record_spans)
    for step in range(steps):
        opened, batch = run.queue.now, run.batch(step)
        left = len(batch)
        for position, completion in enumerate(batch):
            run.fleet.submit(position * len(run.fleet) // len(batch), completion.sequence, opened)
        while left:
            run.queue.now = run.fleet.next_at()
            left -= len(run.fleet.advance(run.queue.now))
        for completion in batch:
            completion.version = run.version
        run.train_colocated(batch, opened)
    return run.result()


def queue(setting: Setting, *, steps: int, record_spans: bool = False) -> SimulationResult:
    """Every completion is a task of its own, any free slot takes the next (ROLL Flash, arXiv 2510.11345)."""
    return _in_order(PeerRun(setting, "queue", record_spans=record_spans), steps, lambda batch: batch)


def longest_first(setting: Setting, *, steps: int, record_spans: bool = False) -> SimulationResult:
    """The queue with the longest first. It knows all lengths beforehand, which nobody does: an oracle."""
    run = PeerRun(setting, "longest first (oracle)", record_spans=record_spans)
    return _in_order(run, steps, lambda batch: sorted(batch, key=lambda item: -item.tokens))


def tail_rounds(
    setting: Setting,
    *,
    steps: int,
    eta: float = 1.25,
    stream: Literal["off", "fits", "queues"] = "off",
    record_spans: bool = False,
) -> SimulationResult:
    """Short rounds with more prompts and responses than needed, and rounds for the long (RollPacker).

    A short round starts ceil(eta * P0) prompts with ceil(eta * R0) responses each. A prompt is done at its
    R0-th response, the round at the P0-th prompt; the rest is stopped, its prompts are put aside. When P0 of
    those have come together, a long round runs them with R0 responses each, sampled anew, and stops nothing.

    With its stream trainer, half of the replicas train, from when 0.2 to 0.5 of the responses that the round
    needs are done, 0.05 of them since the last look, and the other half has room. What runs there moves and
    has its KV computed again. When the round is over, all devices train on the rest.

    Source: RollPacker, arXiv 2509.21009, sections 3 and 4 (stream trainer).

    Args:
        setting: Workload and devices.
        steps: Rounds of either kind.
        eta: Factor for prompts and for responses, >= 1.
        stream: The stream trainer: `"off"`; `"fits"` wants a slot in the other half for all that is under way
            (the paper: that projected KV fits); `"queues"` lets what has none wait.
        record_spans: Whether the result has spans.

    Raises:
        SimulationError: If eta is below 1, or half of one replica is to train.
    """
    if not (math.isfinite(eta) and eta >= 1):
        raise SimulationError(f"tail_rounds: got eta={eta!r}, allowed is >= 1")
    if stream != "off" and len(setting.engines) == 1:
        raise SimulationError(f"tail_rounds: got stream={stream!r} with 1 replica, allowed are >= 2")
    run = PeerRun(
        setting, "tail rounds" if stream == "off" else f"RollPacker ({stream})", record_spans=record_spans
    )
    run.streamed = stream != "off"
    prompts, responses = setting.groups_per_batch, setting.group_size
    # The guard keeps 4/3 * 3 from becoming 5.
    more_prompts, more_responses = math.ceil(eta * prompts - 1e-9), math.ceil(eta * responses - 1e-9)
    next_group, aside = 0, list[int]()
    for _ in range(steps):
        opened = run.queue.now
        if len(aside) >= prompts:
            chosen, aside = aside[:prompts], aside[prompts:]
            launched = [_anew(run, group, more_responses, responses) for group in chosen]
        else:
            chosen = list(range(next_group, next_group + more_prompts))
            next_group += more_prompts
            launched = [run.group(group, more_responses) for group in chosen]
        streaming = HalfStream(run, prompts * responses, queues=stream == "queues") if run.streamed else None
        done, late = _first_done(run, launched, prompts, responses, streaming)
        aside += late
        if streaming is None:
            run.train_colocated(done, opened)
        else:
            run.train_streamed(done, opened, streaming.trainer)
    return run.result()


def partial_rollout(
    setting: Setting, *, steps: int, pool: float = 1.5, record_spans: bool = False
) -> SimulationResult:
    """A pool of prompts larger than a batch; the step ends when a batch of groups is done, the rest goes on.

    What is stopped keeps its tokens and goes on in the next step, before new prompts (APRIL, Kimi k1.5). The
    KV of what has a slot stays, unless `EngineModel.sync_recomputes`.

    Args:
        setting: Workload and devices.
        steps: Training steps.
        pool: Prompts under way at the beginning of a step, in batches, >= 1.
        record_spans: Whether the result has spans.

    Raises:
        SimulationError: If `pool` is below 1.
    """
    if not (math.isfinite(pool) and pool >= 1):
        raise SimulationError(f"partial_rollout: got pool={pool!r}, allowed is >= 1")
    run = PeerRun(setting, "partial rollout", record_spans=record_spans)
    next_group = 0
    open_groups: dict[int, list[Completion]] = {}
    ready: list[list[Completion]] = []
    for _ in range(steps):
        opened = run.queue.now
        while len(open_groups) + len(ready) < round(pool * setting.groups_per_batch):
            open_groups[next_group] = []
            run.queue.add(run.group(next_group))
            next_group += 1
        while len(ready) < setting.groups_per_batch:
            ready += completed(open_groups, run.queue.wait(), setting.group_size)
        taken, ready = ready[: setting.groups_per_batch], ready[setting.groups_per_batch :]
        run.train_colocated([item for group in taken for item in group], opened)
    return run.result()


def _in_order(
    run: PeerRun, steps: int, order: Callable[[list[Completion]], list[Completion]]
) -> SimulationResult:
    for step in range(steps):
        opened, batch = run.queue.now, run.batch(step)
        run.queue.add(order(batch))
        while run.queue.size:
            run.queue.wait()
        run.train_colocated(batch, opened)
    return run.result()


def _anew(run: PeerRun, group: int, first: int, responses: int) -> list[Completion]:
    """Further completions of a prompt: what was stopped is not trained on, and sampled anew."""
    return [run.completion(group, first + member) for member in range(responses)]


def _first_done(
    run: PeerRun,
    launched: list[list[Completion]],
    prompts: int,
    responses: int,
    streaming: HalfStream | None = None,
) -> tuple[list[Completion], list[int]]:
    """Runs until `prompts` groups have `responses` completions; those, and the groups that have not."""
    open_groups = {group[0].group: group for group in launched}
    ended: dict[int, list[Completion]] = {number: [] for number in open_groups}
    kept: list[Completion] = []
    run.queue.add([item for group in launched for item in group])
    done = 0
    while done < prompts:
        for item in run.queue.wait():
            if item.group not in open_groups or done == prompts:
                run.meter.refused(item.tokens)
                continue
            ended[item.group].append(item)
            if len(ended[item.group]) == responses:
                done += 1
                _stop(run, [each for each in open_groups.pop(item.group) if each not in ended[item.group]])
                kept += sorted(ended.pop(item.group), key=lambda each: each.member)
        if streaming is not None:
            streaming.look(len(kept) + sum(map(len, ended.values())), len(kept))
    for number, group in open_groups.items():
        for item in ended[number]:
            run.meter.refused(item.tokens)
        _stop(run, [item for item in group if item not in ended[number]])
    return kept, list(open_groups)


def _stop(run: PeerRun, completions: list[Completion]) -> None:
    run.queue.stop(completions)
    for item in completions:
        if item.sequence.started_at is not None:
            run.meter.stopped(item.sequence.done, length=item.tokens)
