"""The work of a trainer of given rows: preferences, distillation, or a reward model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from roll_learners import (
    Distillation,
    Kto,
    LearnerError,
    LocalLearner,
    LocalScorer,
    LogprobSource,
    Pair,
    Preference,
    TopLogits,
    distillation_step,
    kto_metrics,
    kto_step,
    preference_metrics,
    preference_step,
)
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rollout import Completion
from roll_rollout.sync import ObjectStore, Publication

from roll_launch.models import load_model
from roll_launch.side_roles import OfflineSpec
from roll_launch.workers.reward_model import RewardModelTrainer
from roll_launch.workers.teacher import KeptLogprobs, TeacherWorker, distillation_teachers
from roll_launch.workers.trainer import TrainerWorker

Signals = Sequence[Sequence[TopLogits]]


class OfflineTask(Protocol):
    """What is done with samples."""

    def prepare(self, samples: Sequence[Sample], last: bool) -> None:
        """Computes what is needed of samples that will come."""
        ...

    def step(self, samples: Sequence[Sample], signals: Signals) -> StepResult:
        """One update."""
        ...

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Metrics without an update, by the names that they have in training."""
        ...


class PreferenceTask:
    """Pairs of responses under a `Preference`."""

    def __init__(self, spec: OfflineSpec, rule: Preference, learner: LocalLearner) -> None:
        self._rule, self._learner = rule, learner
        self._reference: LogprobSource | None = None
        if rule.needs_reference:
            source = _reference(spec, learner)
            self._reference = KeptLogprobs(source) if spec.once else source

    def prepare(self, samples: Sequence[Sample], last: bool) -> None:
        """See `OfflineTask`."""
        if isinstance(self._reference, KeptLogprobs):
            self._reference.logprobs(samples)
            if last:
                self._reference.release()

    def step(self, samples: Sequence[Sample], signals: Signals) -> StepResult:
        """See `OfflineTask`."""
        done = preference_step(self._learner, pairs_of(samples), self._rule, reference=self._reference)
        return StepResult(metrics=self._weighted(done.metrics), updates=done.updates, skipped=done.skipped)

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """See `OfflineTask`."""
        pairs = pairs_of(samples)
        return self._weighted(preference_metrics(self._learner, pairs, self._rule, reference=self._reference))

    def _weighted(self, metrics: dict[str, float]) -> dict[str, float]:
        return weighted_rewards(metrics, self._rule.options.get("beta", 1.0))


class KtoTask:
    """Single responses that are desirable or not."""

    def __init__(self, spec: OfflineSpec, rule: Kto, learner: LocalLearner) -> None:
        self._rule, self._learner, self._reference = rule, learner, _reference(spec, learner)

    def prepare(self, samples: Sequence[Sample], last: bool) -> None:
        """Nothing: the baseline pairs prompts with responses anew in every step."""

    def step(self, samples: Sequence[Sample], signals: Signals) -> StepResult:
        """See `OfflineTask`."""
        done = kto_step(self._learner, samples, self._rule, reference=self._reference)
        return StepResult(metrics=self._named(done.metrics), updates=done.updates, skipped=done.skipped)

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """See `OfflineTask`."""
        return self._named(kto_metrics(self._learner, samples, self._rule, reference=self._reference))

    def _named(self, metrics: dict[str, float]) -> dict[str, float]:
        """Desirable responses are called chosen, as in stages of pairs."""
        made = weighted_rewards(metrics, self._rule.beta)
        for theirs, ours in (("desirable", "chosen"), ("undesirable", "rejected")):
            if f"rewards/{theirs}" in made:
                made[f"rewards/{ours}"] = made.pop(f"rewards/{theirs}")
        if {"rewards/chosen", "rewards/rejected"} <= made.keys():
            made["rewards/margins"] = made["rewards/chosen"] - made["rewards/rejected"]
        return made


class DistillationTask:
    """Given responses under teachers."""

    def __init__(self, spec: OfflineSpec, rule: Distillation, learner: LocalLearner) -> None:
        self._specs, self._rule, self._learner = spec.teachers, rule, learner
        self._teachers = [TeacherWorker(teacher) for teacher in spec.teachers if not teacher.own]
        self._refuse_other_vocabularies()

    def prepare(self, samples: Sequence[Sample], last: bool) -> None:
        """Nothing: what teachers keep they compute when it first comes."""

    def step(self, samples: Sequence[Sample], signals: Signals) -> StepResult:
        """See `OfflineTask`."""
        teachers = distillation_teachers(self._specs, self._teachers, signals)
        return distillation_step(self._learner, samples, self._rule, teachers)

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """actor/nll of the given responses, nats a token."""
        columns = self._learner.logprobs(samples)
        tokens = sum(sample.response_tokens for sample in samples)
        total = sum(float(column.sum(dtype=np.float64)) for column in columns)
        return {"actor/nll": -total / max(tokens, 1)}

    def _refuse_other_vocabularies(self) -> None:
        own = int(self._learner.model.config.get_text_config().vocab_size)
        for teacher in self._teachers:
            theirs = int(teacher.scorer.model.config.get_text_config().vocab_size)
            if own != theirs and self._rule.vocabulary is None and self._rule.top_k is None:
                raise LearnerError(
                    f"the student has {own} logits and a teacher {theirs}: set objective.vocabulary to the"
                    " size of the tokenizer they share"
                )


class OfflineWorker:
    """Trains a policy on given rows. Methods block; call them from one thread at a time."""

    def __init__(self, spec: OfflineSpec, store: ObjectStore | None = None) -> None:
        self._trainer = TrainerWorker(spec.trainer, store=store)
        learner = self._trainer.learner
        if not isinstance(learner, LocalLearner):
            raise TypeError(f"{type(learner).__name__} does not train on given rows")
        rule = spec.rule
        if isinstance(rule, Preference):
            self._task: OfflineTask = PreferenceTask(spec, rule, learner)
        elif isinstance(rule, Kto):
            self._task = KtoTask(spec, rule, learner)
        elif isinstance(rule, Distillation):
            self._task = DistillationTask(spec, rule, learner)
        else:
            raise TypeError(f"{type(rule).__name__} trains no policy")
        self.prepare, self.step, self.evaluate = self._task.prepare, self._task.step, self._task.evaluate

    def publish(self, version: int) -> tuple[Publication, str]:
        """See `TrainerWorker`."""
        return self._trainer.publish(version)

    def probe(self, completion: Completion) -> float:
        """See `TrainerWorker`."""
        return self._trainer.probe(completion)

    def save(self, directory: Path, state: bool) -> None:
        """See `TrainerWorker`."""
        self._trainer.save(directory, state)

    def peak_rss_gb(self) -> float:
        """See `TrainerWorker`."""
        return self._trainer.peak_rss_gb()


def offline_worker(
    spec: OfflineSpec, store: ObjectStore | None = None
) -> "OfflineWorker | RewardModelTrainer":
    """The worker for what `spec` computes.

    Args:
        spec: Of the trainer.
        store: Of the runtime, for weights that are published; None if it has none.
    """
    if isinstance(spec.rule, Preference | Kto | Distillation):
        return OfflineWorker(spec, store)
    return RewardModelTrainer(spec)


def pairs_of(samples: Sequence[Sample]) -> list[Pair]:
    """From all chosen responses followed by all rejected ones."""
    half = len(samples) // 2
    return [Pair(chosen, rejected) for chosen, rejected in zip(samples[:half], samples[half:], strict=True)]


def weighted_rewards(metrics: dict[str, float], beta: float) -> dict[str, float]:
    """Metrics in which log-ratios have become implicit rewards, beta times them, as TRL reports them."""
    return {
        name: value * beta if name.startswith("rewards/") and name != "rewards/accuracies" else value
        for name, value in metrics.items()
    }


def _reference(spec: OfflineSpec, learner: LocalLearner) -> LogprobSource:
    """The model that the stage began with; with an adapter it is the learner's own without it."""
    if learner.adapter is not None:
        return learner.reference()
    settings = spec.trainer.learner
    return LocalScorer(
        load_model(spec.trainer.model),
        micro_batch_tokens=settings.micro_batch_tokens,
        device=settings.device,
    )
