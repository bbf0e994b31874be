"""Re-creations of published schedulers that train on devices of their own while replicas generate.

As in `peers`, each is our reading of a paper, not the authors' code. `Setting.split` makes their settings.
"""

import math

from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.peer_run import PeerRun, completed
from roll_scheduler.simulator.result import SimulationResult
from roll_scheduler.simulator.setting import Setting
from roll_scheduler.simulator.slot_queue import Completion

__all__ = ["capacity", "one_step_off"]


def one_step_off(setting: Setting, *, steps: int, record_spans: bool = False) -> SimulationResult:
    """Generates the next batch while it trains on this one; both have to end before weights are sent.

    Source: the one-step off-policy baseline of RollArt (arXiv 2512.22560) and of verl's recipe of that name.

    Args:
        setting: Workload and devices, of which the trainer has some of its own.
        steps: Training steps.
        record_spans: Whether the result has spans.

    Raises:
        SimulationError: If the trainer has no devices of its own.
    """
    run = _overlapped(setting, "one step off", record_spans=record_spans)
    batch, opened = run.batch(0), 0.0
    _generate(run, batch)
    cut = run.queue.now
    for step in range(steps):
        train_s, began = setting.train_s(len(batch)), run.queue.now
        delivered = run.delivered(batch)
        following = run.batch(step + 1) if step + 1 < steps else []
        _generate(run, following)
        generated = run.queue.now
        run.queue.now = max(generated, began + train_s)
        run.queue.idle(setting.sync_s, sync=True)
        run.version += 1
        run.meter.close(delivered, opened=opened, cut=cut, train_s=train_s, end=run.queue.now)
        batch, opened, cut = following, began, generated
    return run.result()


def capacity(
    setting: Setting, *, steps: int, staleness: int = 1, record_spans: bool = False
) -> SimulationResult:
    """Generates without a pause as long as the number of prompts keeps what is under way fresh (AReaL).

    A prompt is sent if then at most (version + staleness + 1) batches have been sent. New weights interrupt
    what is being generated, which goes on under them; the oldest complete groups are trained on first. That
    keeps most samples within the bound, but not all: nobody waits for a slow one.

    Source: AReaL, arXiv 2505.24298, section 5.1.

    Args:
        setting: Workload and devices, of which the trainer has some of its own.
        steps: Training steps.
        staleness: The bound eta, >= 0.
        record_spans: Whether the result has spans.

    Raises:
        SimulationError: If the trainer has no devices of its own, or `staleness` is negative.
    """
    if staleness < 0:
        raise SimulationError(f"capacity: got staleness={staleness}, allowed is >= 0")
    run = _overlapped(setting, f"capacity (AReaL, {staleness})", record_spans=record_spans)
    open_groups: dict[int, list[Completion]] = {}
    ready: list[list[Completion]] = []
    sent = 0
    for _ in range(steps):
        opened = run.queue.now
        while sent < (run.version + staleness + 1) * setting.groups_per_batch:
            open_groups[sent] = []
            run.queue.add(run.group(sent))
            sent += 1
        while len(ready) < setting.groups_per_batch:
            ready += completed(open_groups, run.queue.wait(), setting.group_size)
        cut = run.queue.now
        ready.sort(key=lambda group: (min(item.version for item in group), group[0].group))
        taken, ready = ready[: setting.groups_per_batch], ready[setting.groups_per_batch :]
        batch = [item for group in taken for item in group]
        train_s, delivered = setting.train_s(len(batch)), run.delivered(batch)
        while run.queue.now < cut + train_s:
            ready += completed(open_groups, run.queue.wait(cut + train_s), setting.group_size)
        run.queue.idle(setting.sync_s, sync=True)
        run.version += 1
        run.meter.close(delivered, opened=opened, cut=cut, train_s=train_s, end=run.queue.now)
    return run.result()


def _overlapped(setting: Setting, name: str, *, record_spans: bool) -> PeerRun:
    if setting.trainer.colocated:
        raise SimulationError(
            f"{name}: got a trainer on the replicas' devices, allowed is one with devices of its own "
            "(Setting.split)"
        )
    return PeerRun(setting, name, record_spans=record_spans)


def _generate(run: PeerRun, batch: list[Completion]) -> None:
    run.queue.add(batch)
    while math.isfinite(run.queue.next_at()):
        run.queue.wait()
