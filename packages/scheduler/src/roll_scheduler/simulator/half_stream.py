"""RollPacker's stream trainer for the re-created tail rounds: half of the replicas, once a round."""

from roll_scheduler.simulator.peer_run import PeerRun
from roll_scheduler.simulator.stream_trainer import StreamTrainer

__all__ = ["HalfStream"]

LEAST_DONE, MOST_DONE, BETWEEN_LOOKS = 0.2, 0.5, 0.05
"""Shares of the round's responses between which it may happen, and that end between two looks."""


class HalfStream:
    """One round's stream trainer.

    Args:
        run: The peer's run.
        needed: Responses that make the round.
        queues: Whether what has no slot in the other half may wait for one.

    Attributes:
        trainer: What has been trained on.

    Source: RollPacker, arXiv 2509.21009, section 4.
    """

    def __init__(self, run: PeerRun, needed: int, *, queues: bool) -> None:
        self.trainer = StreamTrainer()
        self.trainer.settle(run.queue.now)
        self._run = run
        self._needed = needed
        self._queues = queues
        self._looked_at = 0
        self._arrives: float | None = None
        self._half = range(len(run.fleet) // 2, len(run.fleet))

    def look(self, ended: int, kept: int) -> None:
        """Something ended.

        Args:
            ended: Responses that ended and count.
            kept: Those of them whose prompts are done, which can be trained on.
        """
        now = self._run.queue.now
        if self._arrives is None:
            share = ended / self._needed
            if not LEAST_DONE <= share <= MOST_DONE or ended - self._looked_at < BETWEEN_LOOKS * self._needed:
                return
            self._looked_at = ended
            slots = sum(model.slots for model in self._run.fleet.models[: self._half.start])
            if self._queues or self._run.queue.size <= slots:
                self._run.queue.close(self._half)
                self._arrives = now + self._run.setting.switch_s
        if self._arrives is None:
            return
        if not self.trainer.devices and now >= self._arrives:
            self.trainer.add(len(self._half), self._arrives)
        self.trainer.offer(kept * self._run.setting.trainer.sample_s, now)
