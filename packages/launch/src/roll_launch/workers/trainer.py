"""The trainer's work: a model and its learner in one process.

The local runtime calls it on the trainer's own thread; under Ray it lives inside an actor.
"""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from roll_learners import KlController, Roles, policy_step, supervised_step
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rollout import Completion, WeightUpdate, weights_checksum
from roll_rollout.torch_weights import weight_update
from transformers.utils.logging import disable_progress_bar

from roll_launch.models import load_tokenizer, save_pretrained
from roll_launch.roles import TrainerSpec
from roll_launch.samples import sample_from_completion
from roll_launch.workers.learners import build_critics, build_learner, build_reference

TRAINER_STATE = "trainer.pt"


class TrainerWorker:
    """Trains one policy. Methods block; call them from one thread at a time."""

    def __init__(self, spec: TrainerSpec) -> None:
        torch.set_num_threads(spec.threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        settings = spec.learner
        self._tokenizer = load_tokenizer(spec.model.tokenizer)
        self._learner = build_learner(spec)
        self._algorithm = spec.algorithm
        self._reference = build_reference(spec)
        self._critics = build_critics(spec)
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

    def policy_step(
        self, completions: Sequence[Completion], rewards: Sequence[float], groups: Sequence[int]
    ) -> StepResult:
        """One policy-gradient step over the whole batch."""
        if self._algorithm is None:
            raise ValueError("policy_step on a trainer that was started without an algorithm")
        samples = [
            sample_from_completion(completion, reward=reward, group=group)
            for completion, reward, group in zip(completions, rewards, groups, strict=True)
        ]
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
            roles=Roles(critics=self._critics, kl=self._kl, update_actor=update_actor),
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
                "critics": [
                    {"model": critic.model.state_dict(), "learner": critic.state_dict()}
                    for critic in self._critics
                ],
            }
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
        for critic, saved in zip(self._critics, state["critics"], strict=True):
            critic.model.load_state_dict(saved["model"])
            critic.load_state_dict(saved["learner"])
        if self._kl is not None:
            self._kl.coef = state["kl_coef"]
