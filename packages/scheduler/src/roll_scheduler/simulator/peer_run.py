"""What re-created peers have in common: engines, a queue, and how a step is closed."""

from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.fleet import Fleet
from roll_scheduler.simulator.result import Delivered, Meter, SimulationResult
from roll_scheduler.simulator.setting import Setting
from roll_scheduler.simulator.slot_queue import Completion, SlotQueue
from roll_scheduler.simulator.stream_trainer import StreamTrainer

__all__ = ["PeerRun", "completed"]


class PeerRun:
    """What all re-creations have in common: a fleet, its queue, and how a step is closed.

    Args:
        setting: Workload and devices.
        name: Of the result.
        record_spans: Whether the result has spans.

    Raises:
        SimulationError: If the setting has what re-creations leave out.
    """

    def __init__(self, setting: Setting, name: str, *, record_spans: bool = False) -> None:
        workload = setting.workload
        left_out = {
            "turns": workload.turns > 1,
            "reward latency": not workload.reward.is_none,
            "failures": bool(setting.failures),
        }
        self.streamed = False
        if any(left_out.values()):
            got = ", ".join(what for what, there in left_out.items() if there)
            raise SimulationError(f"{name}: got a setting with {got}, which re-created peers leave out")
        self.setting = setting
        self.name = name
        self.fleet = Fleet(setting.engines, record_spans=record_spans)
        self.meter = Meter(setting, self.fleet)
        self.queue = SlotQueue(self.fleet, self._started)
        self.version = 0
        self._names: dict[int, tuple[int, int]] = {}

    def completion(self, group: int, member: int) -> Completion:
        """A new completion of a group's prompt."""
        key = len(self._names)
        self._names[key] = (group, member)
        return Completion(self.setting.workload, group, member, key)

    def group(self, group: int, size: int | None = None) -> list[Completion]:
        """New completions of a group's prompt."""
        return [self.completion(group, member) for member in range(size or self.setting.group_size)]

    def batch(self, step: int) -> list[Completion]:
        """The completions of the step's prompts, in order."""
        count = self.setting.groups_per_batch
        return [item for group in range(step * count, (step + 1) * count) for item in self.group(group)]

    def train_colocated(self, done: list[Completion], opened: float) -> None:
        """Trains while nothing is generated, sends the weights, and closes the step."""
        cut, train_s = self.queue.now, self.setting.train_s(len(done))
        delivered = self.delivered(done)
        self.queue.idle(2 * self.setting.switch_s + train_s)
        self.queue.idle(self.setting.sync_s, sync=True)
        self.version += 1
        self.meter.close(delivered, opened=opened, cut=cut, train_s=train_s, end=self.queue.now)

    def train_streamed(self, done: list[Completion], opened: float, trainer: StreamTrainer) -> None:
        """The same with devices that have trained on part of it already; the others come to them first."""
        cut, setting = self.queue.now, self.setting
        delivered, devices = self.delivered(done), len(self.fleet)
        trainer.offer(setting.trainer.sample_s * len(done), cut)
        early = trainer.devices
        together = cut + (setting.switch_s if early < devices else 0.0)
        trainer.settle(together)
        trainer.add(devices - early, together)
        end = together + trainer.left_s / devices
        trainer.settle(end)
        self.queue.open()
        self.queue.idle(end - cut + setting.trainer.fixed_s + setting.switch_s)
        self.queue.idle(setting.sync_s, sync=True)
        trainer.begin(self.queue.now)
        trainer.add(-devices, self.queue.now)
        self.version += 1
        train_s = setting.train_s(len(done))
        self.meter.close(delivered, opened=opened, cut=cut, train_s=train_s, end=self.queue.now)

    def delivered(self, done: list[Completion]) -> list[Delivered]:
        """What the step trains on, at the present version."""
        return [
            Delivered(
                group=item.group,
                member=item.member,
                tokens=item.tokens,
                staleness=self.version - item.version,
            )
            for item in done
        ]

    def result(self) -> SimulationResult:
        """What the run was like."""
        return SimulationResult(
            policy=self.name,
            recreation=True,
            streamed=self.streamed,
            setting=self.setting,
            steps=tuple(self.meter.steps),
            groups=tuple(self.meter.groups),
            spans=self.meter.spans(self._names),
        )

    def _started(self, completion: Completion) -> None:
        if completion.sequence.started_at is None:
            completion.version = self.version


def completed(
    open_groups: dict[int, list[Completion]], ended: list[Completion], size: int
) -> list[list[Completion]]:
    """Adds what has ended to its groups and takes out those that are complete by that."""
    complete = []
    for item in ended:
        open_groups[item.group].append(item)
        if len(open_groups[item.group]) == size:
            complete.append(open_groups.pop(item.group))
    return complete
