"""Learner, reference and critic of Megatron-Core, for processes that were started together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike

import numpy as np
import numpy.typing as npt
from torch import Tensor

from roll_learners.critic import ended
from roll_learners.errors import LearnerError
from roll_learners.megatron.heads import LanguageRunner, ValueRunner
from roll_learners.megatron.layout import MegatronLayout
from roll_learners.megatron.trained import LoadedModel, MegatronModel
from roll_learners.megatron.weights import Weights
from roll_learners.objective import Objective
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings
from roll_learners.value_objective import ValueTarget


class MegatronLearner(MegatronModel[Objective]):
    """AdamW over a policy that is spread by a `MegatronLayout`; satisfies `roll_learners.Learner`.

    Every process calls every method with the same arguments: a batch is divided inside.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        layout: MegatronLayout,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        dtype: str = "float32",
        device: str = "cuda",
        packing: bool = False,
    ) -> None:
        """Args:
        weights: The model that training begins with; see `DirectoryWeights` and `ModelWeights`.
        layout: How it is spread.
        optimizer: Rates, clipping and schedule.
        micro_batch_tokens: Most tokens in one pass of a replica, padding included.
        temperature: The one that completions are sampled with; 1 for demonstrations.
        dtype: "float32", or "bfloat16" with float32 copies in the optimizer.
        device: A torch device.
        packing: Samples are laid back to back without padding.

        Raises:
            LearnerError: A setting is out of range, the family has no converter, or sizes do not divide.
        """
        head = _language_head(weights, temperature)
        loaded = LoadedModel.load(weights, layout, head="language", dtype=dtype, device=device)
        super().__init__(loaded, head, optimizer, micro_batch_tokens=micro_batch_tokens, packing=packing)

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights: float32[N] each, 0 elsewhere."""
        return self.passes.numbers(self._head, samples)


class MegatronScorer:
    """Log-probs under fixed weights: a reference policy, or a teacher."""

    def __init__(
        self,
        weights: Weights,
        *,
        layout: MegatronLayout,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        dtype: str = "float32",
        device: str = "cuda",
        packing: bool = False,
    ) -> None:
        """Args are those of `MegatronLearner`.

        Raises:
            LearnerError: As there.
        """
        self._head = _language_head(weights, temperature)
        self._loaded = LoadedModel.load(weights, layout, head="language", dtype=dtype, device=device)
        self._passes = self._loaded.passes(
            self._loaded.parts, micro_batch_tokens=micro_batch_tokens, packing=packing
        )

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token: float32[N] each, 0 elsewhere."""
        return self._passes.numbers(self._head, samples)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face name and whole tensor, one after the other; all processes iterate together."""
        return self._loaded.export_weights()

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory; all processes call it."""
        self._loaded.save_pretrained(directory)


class MegatronCritic(MegatronModel[ValueTarget]):
    """AdamW over a model with one number for each token; satisfies `roll_learners.Critic`."""

    def __init__(
        self,
        weights: Weights,
        *,
        layout: MegatronLayout,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        dtype: str = "float32",
        device: str = "cuda",
        packing: bool = False,
    ) -> None:
        """Args are those of `MegatronLearner`; `weights` are of an `AutoModelForTokenClassification` with
        `num_labels=1`.

        Raises:
            LearnerError: As there.
        """
        loaded = LoadedModel.load(weights, layout, head="value", dtype=dtype, device=device)
        super().__init__(
            loaded, ValueRunner(), optimizer, micro_batch_tokens=micro_batch_tokens, packing=packing
        )

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The value before each trained token at the current weights: float32[N] each, 0 elsewhere."""
        return self.passes.numbers(self._head, samples)

    def scores(self, samples: Sequence[Sample]) -> npt.NDArray[np.floating]:
        """[S], the value after the last token of each sample, as a reward model scores a response."""
        columns = self.values([ended(sample) for sample in samples])
        return np.array([column[-1] for column in columns], self.passes.dtype)


def _language_head(weights: Weights, temperature: float) -> LanguageRunner:
    if not temperature > 0:
        raise LearnerError(f"learner temperature is {temperature}: allowed is above 0")
    return LanguageRunner(int(weights.config.vocab_size), temperature)
