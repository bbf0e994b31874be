"""Reward models: trained from pairs, and serving scores to reward workers from a process of their own."""

import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rewards import ConversationQueue

from roll_launch.architectures import ModelError
from roll_launch.side_roles import OfflineSpec, RewardModelSpec

if TYPE_CHECKING:
    from roll_rollout import Completion
    from roll_rollout.sync import Publication
    from transformers import PreTrainedModel

    from roll_launch.models import ModelSource

TRAINER_STATE = "trainer.pt"


class RewardModelTrainer:
    """Trains a sequence classifier of one output by the Bradley-Terry loss of pairs.

    Methods block; call them from one thread at a time.
    """

    def __init__(self, spec: OfflineSpec) -> None:
        import torch
        from roll_learners import LocalCritic, OptimizerSettings
        from transformers.utils.logging import disable_progress_bar

        from roll_launch.config import RewardModelRule
        from roll_launch.models import load_tokenizer

        trainer = spec.trainer
        if not isinstance(spec.rule, RewardModelRule):
            raise TypeError(f"{type(spec.rule).__name__} trains no reward model")
        torch.set_num_threads(trainer.threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        self._margin = spec.rule.margin
        self._tokenizer = load_tokenizer(trainer.model.tokenizer)
        if trainer.resume is None:
            model = new_reward_model(trainer.model)
        else:
            model = load_reward_model(trainer.resume, dtype=trainer.model.dtype)
        model.config.pad_token_id = self._tokenizer.pad_token_id
        # A text prompt is continued by its response as in rollouts.
        model.config.response_joint = ""
        self._critic = LocalCritic(
            model,
            optimizer=OptimizerSettings(
                **trainer.learner.optimizer.model_dump(), total_steps=trainer.optimizer_steps
            ),
            micro_batch_tokens=trainer.learner.micro_batch_tokens,
            device=trainer.learner.device,
        )
        if trainer.resume is not None:
            state = torch.load(trainer.resume / TRAINER_STATE, map_location="cpu", weights_only=True)
            self._critic.load_state_dict(state["learner"])

    def prepare(self, samples: Sequence[Sample], last: bool) -> None:
        """Nothing: there is no reference."""

    def step(self, samples: Sequence[Sample], signals: Sequence[object]) -> StepResult:
        """One update on pairs."""
        from roll_learners import reward_model_step

        from roll_launch.workers.offline import pairs_of

        done = reward_model_step(self._critic, pairs_of(samples), margin=self._margin)
        return replace(done, metrics=_as_actor(done.metrics))

    def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        """rewards/* and the loss of pairs that are not trained on."""
        from roll_learners import reward_model_metrics

        from roll_launch.workers.offline import pairs_of

        return _as_actor(reward_model_metrics(self._critic, pairs_of(samples), margin=self._margin))

    def publish(self, version: int) -> "tuple[Publication, str]":
        """Never asked for: no engine runs a reward model."""
        raise TypeError("a reward model is not published to engines")

    def probe(self, completion: "Completion") -> float:
        """Never asked for."""
        raise TypeError("a reward model is not published to engines")

    def save(self, directory: Path, state: bool) -> None:
        """Writes a sequence classifier with its tokenizer, and the optimizer's state if asked."""
        import torch

        self._critic.save_pretrained(directory)
        self._tokenizer.save_pretrained(directory)
        if state:
            torch.save({"learner": self._critic.state_dict()}, directory / TRAINER_STATE)

    def peak_rss_gb(self) -> float:
        """Peak resident memory of this process, GiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


class RewardModelWorker:
    """A served reward model: what arrives at the same time is scored in batches, on a thread."""

    def __init__(self, spec: RewardModelSpec) -> None:
        import torch
        from transformers.utils.logging import disable_progress_bar

        torch.set_num_threads(spec.threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        self._queue = ConversationQueue(
            spec.path,
            device=spec.device,
            dtype=spec.dtype,
            max_tokens=spec.max_tokens,
            batch_size=spec.max_batch,
            wait_s=spec.wait_s,
        )
        self._queue.load()
        self._scored = 0

    async def score(self, conversation: Sequence[dict[str, str]]) -> float:
        """The model's output for prompt and response."""
        value = await self._queue.score(conversation)
        self._scored += 1
        return value

    @property
    def scored(self) -> int:
        """How many were scored."""
        return self._scored


def new_reward_model(source: "ModelSource") -> "PreTrainedModel":
    """The backbone of `source` with a new head of one output, drawn from the seed of `source`.

    Raises:
        ModelError: As `load_model`, or the architecture has no such form.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    from roll_launch.models import load_model, load_tokenizer

    backbone = load_model(source)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(source.seed)
            config = type(backbone.config).from_dict(
                {
                    **backbone.config.to_dict(),
                    "num_labels": 1,
                    "pad_token_id": load_tokenizer(source.tokenizer).pad_token_id,
                }
            )
            build: Any = AutoModelForSequenceClassification.from_config
            model: PreTrainedModel = build(config, dtype=backbone.dtype)
    # The boundary to transformers: what an architecture lacks is found in its own code.
    except Exception as error:
        raise ModelError(
            f"architecture {backbone.config.model_type!r} has no form that scores sequences: "
            f"{type(error).__name__}: {error}"
        ) from error
    model.base_model.load_state_dict(backbone.base_model.state_dict())
    model.train(False)
    return model


def load_reward_model(path: Path, *, dtype: str) -> "PreTrainedModel":
    """A sequence classifier from a directory.

    Raises:
        ModelError: It cannot be loaded.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    try:
        load: Any = AutoModelForSequenceClassification.from_pretrained
        model: PreTrainedModel = load(path, dtype=getattr(torch, dtype), local_files_only=True)
    # The boundary to transformers: a broken directory raises whatever the loader of its format runs into.
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ModelError(f"cannot load the reward model in {path}: {said}") from error
    model.train(False)
    return model


def _as_actor(metrics: dict[str, float]) -> dict[str, float]:
    """Under the names that pipelines and alarms read of what is trained."""
    return {
        f"actor/{name.removeprefix('critic/')}" if name.startswith("critic/") else name: value
        for name, value in metrics.items()
    }
