"""The trainer's work: a model and its learner in one process.

The local runtime calls it on the trainer's own thread; under Ray it lives inside an actor.
"""

import resource
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from roll_agentic import Episode
from roll_learners import KlController, LocalLearner, Roles, policy_step, supervised_step
from roll_learners.fsdp2 import Fsdp2Learner
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rollout import Completion
from roll_rollout.adapter import AdapterConfig
from roll_rollout.sync import AdapterHeader, ObjectStore, Publication, Sender
from roll_rollout.torch_weights import tensor_bytes
from transformers.utils.logging import disable_progress_bar

from roll_launch.models import load_tokenizer, save_pretrained
from roll_launch.roles import TrainerSpec
from roll_launch.samples import sample_from_completion
from roll_launch.side_roles import critic_file
from roll_launch.trajectories import samples_from_episode
from roll_launch.transports import make_sender
from roll_launch.workers.critic import SavedCritic
from roll_launch.workers.learners import build_critics, build_learner, build_reference, offload
from roll_launch.workers.teacher import TeacherWorker, policy_teachers

TRAINER_STATE = "trainer.pt"
POLICY_ADAPTER = "policy"
"""Name of the adapter that engines generate with where it is all that is published."""
ADAPTER = "adapter"


class TrainerWorker:
    """Trains one policy. Methods block; call them from one thread at a time."""

    def __init__(
        self, spec: TrainerSpec, critics: Sequence[SavedCritic] = (), store: ObjectStore | None = None
    ) -> None:
        """Builds the models.

        Args:
            spec: What of.
            critics: Those that are roles of their own; without them they are built here.
            store: Of the runtime, for weights that are published; None if it has none.
        """
        torch.set_num_threads(spec.threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        settings = self._settings = spec.learner
        self._tokenizer = load_tokenizer(spec.model.tokenizer)
        self._learner = build_learner(spec)
        self._algorithm = spec.algorithm
        self._reference = build_reference(spec, self._learner)
        self._critics: Sequence[SavedCritic] = critics or build_critics(spec)
        self._critics_apart = bool(critics)
        self._teacher_specs = spec.teachers
        self._teachers = [TeacherWorker(teacher) for teacher in spec.teachers if not teacher.own]
        self._payload = spec.sync.config.payload
        self._make_sender = partial(make_sender, spec.sync, store=store)
        self._sender: Sender | None = None
        self._steps = 0
        self._warmup_steps = spec.critics.warmup_steps if spec.critics is not None else 0
        self._kl: KlController | None = None
        if spec.algorithm is not None and spec.algorithm.kl.target is not None:
            kl = spec.algorithm.kl
            self._kl = KlController(kl.coef, target=kl.target, horizon=kl.horizon)
        self._mini_batches = settings.mini_batches
        self._sample_kind = spec.samples
        self._epochs = settings.epochs
        self._rng = np.random.default_rng(spec.seed)
        if spec.resume is not None:
            self._load_state(spec.resume / TRAINER_STATE)

    @property
    def learner(self) -> LocalLearner | Fsdp2Learner:
        """What is trained."""
        return self._learner

    def policy_step(
        self,
        completions: Sequence[Completion | Episode],
        rewards: Sequence[float],
        groups: Sequence[int],
        domains: Sequence[str] = (),
        teachers: Sequence[Sequence[npt.NDArray[np.floating]]] = (),
    ) -> StepResult:
        """One policy-gradient step over the whole batch.

        Args:
            completions: The batch; an episode may be several samples.
            rewards: Of each.
            groups: Of each.
            domains: Of each; none where only one is.
            teachers: Log-probs of the batch of each teacher that is a role of its own.
        """
        if self._algorithm is None:
            raise ValueError("policy_step on a trainer that was started without an algorithm")
        samples = [
            replace(sample, tag=tag) if tag else sample
            for completion, reward, group, tag in zip(
                completions, rewards, groups, domains or [""] * len(completions), strict=True
            )
            for sample in self._samples_of(completion, reward, group)
        ]
        update_actor = self._steps >= self._warmup_steps
        self._steps += 1
        done = policy_step(
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
        offload(self._learner, self._settings)
        return done

    def _samples_of(self, rollout: Completion | Episode, reward: float, group: int) -> list[Sample]:
        if isinstance(rollout, Episode):
            return samples_from_episode(rollout, reward=reward, group=group, kind=self._sample_kind)
        return [sample_from_completion(rollout, reward=reward, group=group)]

    def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        """One supervised step."""
        return supervised_step(self._learner, samples)

    def publish(self, version: int) -> tuple[Publication, str]:
        """Publishes the present weights, or the adapter; returns what receivers fetch, and its checksum."""
        header = None
        if self._payload == "adapter":
            config, tensors = self._adapted().export_adapter()
            header = AdapterHeader(name=POLICY_ADAPTER, config=_adapter_config(config))
        else:
            tensors = self._learner.export_weights()
        if self._sender is None:
            self._sender = self._make_sender()
        published = self._sender.publish(tensor_bytes(tensors), version=version, adapter=header)
        offload(self._learner, self._settings)
        return published, published.checksum

    def _adapted(self) -> LocalLearner:
        learner: object = self._learner
        if not isinstance(learner, LocalLearner):
            raise TypeError(f"weight_sync.payload adapter: {type(learner).__name__} trains no adapter")
        return learner

    def probe(self, completion: Completion) -> float:
        """The greatest |difference| between a completion's log-probs and those of the present weights."""
        sample = sample_from_completion(completion, reward=0.0, group=0)
        (logprobs,) = self._learner.logprobs([sample])
        offload(self._learner, self._settings)
        trained = logprobs[len(completion.prompt_ids) :]
        return float(np.abs(trained - completion.logprobs).max())

    def save(self, directory: Path, state: bool) -> None:
        """Writes model and tokenizer, and the optimizer's state if asked.

        With an adapter a state is that of the adapter, which lies alone in PEFT's layout; a model has the
        adapter in its weights, and it once more by itself under `adapter`.
        """
        learner = self._learner
        if isinstance(learner, LocalLearner) and learner.adapter is not None:
            self._tokenizer.save_pretrained(directory)
            learner.save_adapter(directory if state else directory / ADAPTER)
            if not state:
                learner.save_pretrained(directory)
        else:
            save_pretrained(learner.model, self._tokenizer, directory)
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


def _adapter_config(config: Mapping[str, Any]) -> AdapterConfig:
    """The shape of an adapter, from PEFT's configuration."""
    return AdapterConfig(
        rank=int(config["r"]),
        alpha=float(config["lora_alpha"]),
        target_modules=tuple(config["target_modules"]),
        rank_stabilised=bool(config["use_rslora"]),
    )
