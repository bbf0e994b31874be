"""The bounds of ROLL Flash (arXiv 2510.11345, propositions 1 and 2): upper bounds of what queues achieve.

K workers do one sample at a time, a sample takes mu_gen seconds on average and L_gen at most; a step has N
samples and trains E epochs of mu_train seconds a sample; alpha is the asynchronous ratio.

*Proposition 1.* With Q samples in a queue and greedy workers, the last sample of the queue starts when no
worker is idle, that is before Q * mu_gen / K, and takes at most L_gen. Per sample: mu_gen / K + L_gen / Q. A
synchronous step has Q = N; with ratio alpha it is Q = (alpha + 1) * N.

*Proposition 2.* With b * K workers for training, a step needs E * N * mu_train / (b * K) for it, and
N * mu_gen / ((1 - b) * K) + L_gen / ((alpha + 1) * (1 - b)) suffice for generation: the second term is looser
than proposition 1, which is what makes both sides equal at `trainer_share`, where the step takes
(N / K) * (mu_gen + E * mu_train) + L_gen / (alpha + 1). That share is not the best for proposition 1 itself.
"""

from dataclasses import dataclass

from roll_scheduler.simulator.errors import SimulationError

__all__ = ["FlashModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashModel:
    """Workers and times, for example `FlashModel(workers=8, samples=64, mean_s=2, longest_s=40)`.

    Attributes:
        workers: K, >= 1.
        samples: N, samples of a step, >= 1.
        mean_s: mu_gen, mean seconds to generate a sample, > 0.
        longest_s: L_gen, greatest seconds, >= `mean_s`.
        train_s: mu_train, seconds to train on a sample once, >= 0.
        epochs: E, >= 1.
    """

    workers: int
    samples: int
    mean_s: float
    longest_s: float
    train_s: float = 0.0
    epochs: int = 1

    def __post_init__(self) -> None:
        counts = self.workers >= 1 and self.samples >= 1 and self.epochs >= 1
        if not (counts and 0 < self.mean_s <= self.longest_s and self.train_s >= 0):
            raise SimulationError(
                f"FlashModel: got {self}, allowed are counts >= 1, 0 < mean_s <= longest_s, train_s >= 0"
            )

    def sample_bound(self, alpha: float) -> float:
        """Greatest seconds a sample that generation takes with all workers (proposition 1)."""
        return self.mean_s / self.workers + self.longest_s / ((alpha + 1) * self.samples)

    def trainer_share(self, alpha: float) -> float:
        """Share of the workers for training at which both sides of proposition 2 take equally long."""
        train = self.epochs * self.samples * self.train_s
        return train / (self.samples * self.mean_s + self.workers * self.longest_s / (alpha + 1) + train)

    def step_bound(self, alpha: float) -> float:
        """Greatest seconds of a step at `trainer_share` (proposition 2); at alpha 0 of a synchronous step."""
        return self._work_s + self.longest_s / (alpha + 1)

    def train_step_s(self, alpha: float) -> float:
        """Seconds that training takes at `trainer_share`."""
        workers = self.trainer_share(alpha) * self.workers
        return self.epochs * self.samples * self.train_s / workers if workers else 0.0

    def rollout_bound(self, alpha: float) -> float:
        """Greatest seconds of a step's generation by the workers that `trainer_share` leaves."""
        workers = (1 - self.trainer_share(alpha)) * self.workers
        return self.samples * self.mean_s / workers + self.longest_s / (alpha + 1)

    @property
    def greatest_speedup(self) -> float:
        """Limit of step bounds, synchronous to asynchronous, as alpha grows."""
        return 1 + self.longest_s / self._work_s

    @property
    def greatest_generation_speedup(self) -> float:
        """The same for proposition 1 with as many workers as samples."""
        return (self.longest_s + self.mean_s) / self.mean_s

    @property
    def _work_s(self) -> float:
        return self.samples / self.workers * (self.mean_s + self.epochs * self.train_s)
