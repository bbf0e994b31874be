"""The learner of one process and one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.compute import ComputeSettings
from roll_learners.errors import LearnerError
from roll_learners.local_model import LocalModel
from roll_learners.lora import Adapter, add_adapter, load_adapter
from roll_learners.lora_settings import LoraSettings
from roll_learners.objective import Objective
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings
from roll_learners.scoring import LocalScorer, TopLogits


class LocalLearner(LocalModel[Objective]):
    """AdamW on one device. Any objective, any causal language model of transformers.

    Dropout is off also in updates, so that log-probs do not depend on a random state.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
        compute: ComputeSettings | None = None,
        lora: LoraSettings | None = None,
        adapter: str | PathLike[str] | None = None,
        router_aux_loss: float = 0.0,
    ) -> None:
        """Args:
        model: A causal language model; it is moved to `device` and trained in place. Parameters
            that require no gradient stay as they are.
        optimizer: Rates, clipping and schedule.
        micro_batch_tokens: Most tokens in one pass, padding included.
        temperature: The one that completions are sampled with; 1 for demonstrations.
        device: A torch device.
        compute: Precision, memory and layout; None is the default of each.
        lora: Train an adapter of this shape in place of the weights, which stay.
        adapter: A directory in PEFT's layout, whose adapter is trained on; not with `lora`.
        router_aux_loss: Of a mixture of experts, see `LocalScorer`.

        Raises:
            LearnerError: A setting is out of range, or the model's logits, or one of the options, are not
                supported.
        """
        if lora is not None and adapter is not None:
            raise LearnerError(f"LocalLearner: lora and adapter {adapter} are both given: one is allowed")
        self.adapter: Adapter | None = None
        if lora is not None:
            self.adapter = add_adapter(model, lora)
        elif adapter is not None:
            self.adapter = load_adapter(model, adapter)
        self._scorer = LocalScorer(
            model,
            micro_batch_tokens=micro_batch_tokens,
            temperature=temperature,
            device=device,
            compute=compute,
            router_aux_loss=router_aux_loss,
        )
        super().__init__(model, self._scorer, optimizer, master_weights=self._scorer.compute.master_weights)

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights; see `LocalScorer.logprobs`."""
        self.reload(optimizer=False)
        return self._scorer.logprobs(samples)

    def reference(self) -> WithoutAdapter:
        """The policy without its adapter: a reference that needs no second model.

        Raises:
            LearnerError: There is no adapter.
        """
        return WithoutAdapter(self._scorer, self._own_adapter("reference"))

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """As `LocalModel.export_weights`; an adapter is in the weights, which are then made one at a time.

        Raises:
            LearnerError: The adapter changes one side of a tied pair.
        """
        self.reload(optimizer=False)
        return super().export_weights() if self.adapter is None else self.adapter.merged_weights()

    def export_adapter(self) -> tuple[dict[str, object], Iterator[tuple[str, Tensor]]]:
        """PEFT's configuration, and name and live tensor of each of the adapter's weights, in PEFT's names.

        Raises:
            LearnerError: There is no adapter.
        """
        self.reload(optimizer=False)
        return self._own_adapter("export_adapter").export()

    def save_adapter(self, directory: str | PathLike[str]) -> None:
        """Writes the adapter alone, in PEFT's layout; `adapter=` loads it again.

        Raises:
            LearnerError: There is no adapter.
        """
        self._own_adapter("save_adapter").save(directory)

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory of the model, with the adapter in its weights if there is one."""
        self.reload(optimizer=False)
        if self.adapter is None:
            super().save_pretrained(directory)
        else:
            self.adapter.save_merged(directory)

    def _own_adapter(self, method: str) -> Adapter:
        if self.adapter is None:
            raise LearnerError(f"LocalLearner.{method}: the learner was made without lora or adapter")
        return self.adapter


class WithoutAdapter:
    """A learner's model with its adapter off: a reference policy, or a teacher."""

    def __init__(self, scorer: LocalScorer, adapter: Adapter) -> None:
        """Args:
        scorer: Of the learner.
        adapter: In the scorer's model.
        """
        self._scorer, self._adapter = scorer, adapter
        self.temperature = scorer.temperature

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """See `LocalScorer.logprobs`."""
        with self._adapter.off():
            return self._scorer.logprobs(samples)

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """See `LocalScorer.states`."""
        with self._adapter.off():
            return self._scorer.states(samples)

    def logits(self, states: Tensor) -> Tensor:
        """See `LocalScorer.logits`; while the policy computes its own the adapter is on again."""
        with self._adapter.off():
            return self._scorer.logits(states)

    def top_logits(self, samples: Sequence[Sample], k: int) -> list[TopLogits]:
        """See `LocalScorer.top_logits`."""
        with self._adapter.off():
            return self._scorer.top_logits(samples, k)
