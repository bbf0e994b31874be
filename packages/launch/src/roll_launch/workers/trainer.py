"""The trainer's work: a model and its learner in one process.

The local runtime calls it on the trainer's own thread; under Ray it lives inside an actor.
"""

import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from roll_learners import KlController, LocalLearner, Roles, policy_step, supervised_step
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rollout import Completion, WeightUpdate, weights_checksum
from roll_rollout.torch_weights import weight_update
from transformers.utils.logging import disable_progress_bar

from roll_launch.models import load_tokenizer, save_pretrained
from roll_launch.roles import TrainerSpec
from roll_launch.samples import sample_from_completion
from roll_launch.side_roles import critic_file
from roll_launch.workers.critic import SavedCritic
from roll_launch.workers.learners import build_critics, build_learner, build_reference
from roll_launch.workers.teacher import TeacherWorker, policy_teachers

TRAINER_STATE = "trainer.pt"


class TrainerWorker:
    """Trains one policy. Methods block; call them from one thread at a time."""

    def __init__(self, spec: TrainerSpec, critics: Sequence[SavedCritic] = ()) -> None:
        """Builds the models.

        Args:
            spec: What of.
            critics: Those that are roles of their own; without them they are built here.
        """
        torch.set_num_threads(spec.threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        settings = spec.learner
        self._tokenizer = load_tokenizer(spec.model.tokenizer)
        self._learner = build_learner(spec)
        self._algorithm = spec.algorithm
        self._reference = build_reference(spec)
        self._critics: Sequence[SavedCritic] = critics or build_critics(spec)
        self._critics_apart = bool(critics)
        self._teacher_specs = spec.teachers
        self._teachers = [TeacherWorker(teacher) for teacher in spec.teachers if not teacher.own]
        self._steps = 0
        self._warmup_steps = spec.critics.warmup_steps if spec.critics is not None else 0
        self._kl: KlController | None = None
        if spec.algorithm is not None and spec.algorithm.kl.target is not None:
            kl = spec.algorithm.kl
            self._kl = KlController(kl.coef, target=kl.target, horizon=kl.horizon)
        self._mini_batches = settings.mini_batches
        self._epochs = settings.epochs
        self._rng = np.random.default_rng(spec.seed)
        if spec.resume is not None:
            self._load_state(spec.resume / TRAINER_STATE)

    @property
    def learner(self) -> LocalLearner:
        """What is trained."""
        return self._learner

    def policy_step(
        self,
        completions: Sequence[Completion],
        rewards: Sequence[float],
        groups: Sequence[int],
        domains: Sequence[str] = (),
        teachers: Sequence[Sequence[npt.NDArray[np.floating]]] = (),
    ) -> StepResult:
        """One policy-gradient step over the whole batch.

        Args:
            completions: The batch.
            rewards: Of each.
            groups: Of each.
            domains: Of each; none where only one is.
            teachers: Log-probs of the batch of each teacher that is a role of its own.
        """
        if self._algorithm is None:
            raise ValueError("policy_step on a trainer that was started without an algorithm")
        samples = [
            sample_from_completion(completion, reward=reward, group=group)
            for completion, reward, group in zip(completions, rewards, groups, strict=True)
        ]
        if any(domains):
            samples = [replace(each, tag=tag) for each, tag in zip(samples, domains, strict=True)]
        update_actor = self._steps >= self._warmup_steps
        self._steps += 1
        return policy_step(
            self._learner,
            samples,
            self._algorithm,
            mini_batches=self._mini_batches,
            epochs=self._epochs,
            rng=self._rng,
            reference=self._reference,
            roles=Roles(
                critics=self._critics,
                critics_apart=self._critics_apart,
                teachers=policy_teachers(self._teacher_specs, self._teachers, samples, teachers),
                kl=self._kl,
                update_actor=update_actor,
            ),
        )

    def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        """One supervised step."""
        return supervised_step(self._learner, samples)

    def publish(self, version: int) -> tuple[WeightUpdate, str]:
        """The present weights in buckets, and their checksum."""
        update = weight_update(self._learner.export_weights(), version=version)
        return update, weights_checksum(update.buckets)

    def probe(self, completion: Completion) -> float:
        """The greatest |difference| between a completion's log-probs and those of the present weights."""
        sample = sample_from_completion(completion, reward=0.0, group=0)
        (logprobs,) = self._learner.logprobs([sample])
        trained = logprobs[len(completion.prompt_ids) :]
        return float(np.abs(trained - completion.logprobs).max())

    def save(self, directory: Path, state: bool) -> None:
        """Writes model and tokenizer, and the optimizer's state if asked."""
        save_pretrained(self._learner.model, self._tokenizer, directory)
        if state:
            trainer: dict[str, Any] = {
                "learner": self._learner.state_dict(),
                "rng": self._rng.bit_generator.state,
                "steps": self._steps,
            }
            for number, critic in enumerate(self._critics):
                critic.save(directory / critic_file(number))
            if self._kl is not None:
                trainer["kl_coef"] = self._kl.coef
            torch.save(trainer, directory / TRAINER_STATE)

    def peak_rss_gb(self) -> float:
        """Peak resident memory of this process, GiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2

    def _load_state(self, path: Path) -> None:
        state = torch.load(path, map_location="cpu", weights_only=True)
        self._learner.load_state_dict(state["learner"])
        self._rng.bit_generator.state = state["rng"]
        self._steps = state["steps"]
        if self._kl is not None:
            self._kl.coef = state["kl_coef"]
