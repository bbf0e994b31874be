"""Low-rank adapters through PEFT: beside a frozen model, off for a reference, merged for export.

Needs the extra `roll-learners[lora]`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.errors import LearnerError
from roll_learners.lora_settings import LoraSettings

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

NAME = "default"


class Adapter:
    """An adapter inside a model, whose own weights are frozen."""

    def __init__(self, peft_model: PeftModel) -> None:
        """Args:
        peft_model: Of `add_adapter` or `load_adapter`.
        """
        self._peft = peft_model
        base: PreTrainedModel = peft_model.get_base_model()  # type: ignore[assignment]  # typed as a Module
        self._base = base

    @property
    def config(self) -> LoraConfig:
        """PEFT's."""
        config: LoraConfig = self._peft.peft_config[NAME]  # type: ignore[assignment]  # of any PEFT method
        return config

    @contextmanager
    def off(self) -> Iterator[None]:
        """The model computes as if there were no adapter."""
        with self._peft.disable_adapter():
            yield

    def export(self) -> tuple[dict[str, object], Iterator[tuple[str, Tensor]]]:
        """PEFT's adapter_config.json, and names and tensors as adapter_model.safetensors has them.

        The tensors are the live ones: copy them before the next update.
        """
        from peft import get_peft_model_state_dict

        values = self.config.to_dict()  # type: ignore[no-untyped-call]  # PEFT leaves it untyped
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
        state: Mapping[str, Tensor] = get_peft_model_state_dict(self._peft, adapter_name=NAME)
        return plain, ((name, tensor.detach()) for name, tensor in state.items())

    def merged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of the model with the adapter in its weights, made one at a time.

        The model itself is not changed, so that asking twice gives the same.
        Names are those of the model without an adapter; tied tensors come once.

        Raises:
            LearnerError: The adapter changes one side of a tied pair, so that no tied model equals it.
        """
        if tied := self.untied():
            raise LearnerError(
                f"the adapter changes {', '.join(tied)}, tied to the embedding, which stays: a tied model "
                "cannot take on both; leave it out of lora.target_modules"
            )
        return self._merged()

    def untied(self) -> list[str]:
        """Modules that the adapter changes although their weight is another module's too."""
        uses: dict[int, int] = {}
        for module in self._base.modules():
            for parameter in module.parameters(recurse=False):
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        return [name for name, layer in self._layers().items() if uses[id(layer.base_layer.weight)] > 1]

    def save(self, directory: str | PathLike[str]) -> None:
        """Writes adapter_config.json and adapter_model.safetensors."""
        self._peft.save_pretrained(str(directory))

    def save_merged(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory of the model with the adapter in its weights."""
        config = self._base.config
        plain = copy.deepcopy(config)
        if self.untied():
            plain.tie_word_embeddings = False
            plain.get_text_config().tie_word_embeddings = False
        # A model without weights of its own, which knows how those of its class are written.
        with torch.device("meta"):
            shell = type(self._base)(plain)
        shell.generation_config = self._base.generation_config
        state = {name: tensor.contiguous() for name, tensor in self._merged(once=False)}
        for parameter in shell.parameters():
            parameter.data = parameter.data.to(self._base.dtype)
        shell.save_pretrained(directory, state_dict=state)

    def merged_model(self) -> PreTrainedModel:
        """The model itself with the adapter in its weights, which ends the adapter.

        Raises:
            LearnerError: The adapter changes one side of a tied pair.
        """
        weights = {name: tensor.clone() for name, tensor in self.merged_weights()}
        plain: PreTrainedModel = self._peft.unload()
        plain.load_state_dict(weights, strict=False)
        plain.tie_weights()
        return plain

    def _layers(self) -> dict[str, Any]:
        from peft.tuners.lora import LoraLayer

        return {name: each for name, each in self._base.named_modules() if isinstance(each, LoraLayer)}

    def _merged(self, *, once: bool = True) -> Iterator[tuple[str, Tensor]]:
        layers = self._layers()
        seen: set[int] = set()
        for name, tensor in self._base.state_dict(keep_vars=True).items():
            if ".lora_" in name:
                continue
            owner = name.rpartition(".base_layer.")[0]
            merged = owner in layers and name.endswith(".weight")
            if once and id(tensor) in seen and not merged:
                continue
            seen.add(id(tensor))
            value = tensor.detach()
            if merged:
                delta = layers[owner].get_delta_weight(NAME).detach()
                value = (value.to(delta.dtype) + delta).to(value.dtype)
            yield name.replace(".base_layer.", "."), value


def add_adapter(model: PreTrainedModel, settings: LoraSettings) -> Adapter:
    """A new adapter in the model, in place: the product of its matrices is zero at first.

    The same settings give the same weights; the global random state is left as it was.

    Raises:
        LearnerError: PEFT is not installed, or no module of the model has one of the names.
    """
    peft = _peft()
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        bias="none",
        use_rslora=settings.rank_stabilised,
        target_modules=settings.peft_targets(),
    )
    try:
        with torch.random.fork_rng(devices=[]), _tied_is_known():
            torch.default_generator.manual_seed(settings.seed)
            return Adapter(peft.get_peft_model(model, config))
    except ValueError as error:
        raise LearnerError(f"lora: {type(model).__name__} takes no adapter: {error}") from error


def load_adapter(model: PreTrainedModel, directory: str | PathLike[str]) -> Adapter:
    """The adapter of a directory in PEFT's layout, in the model, in place, to be trained on.

    Raises:
        LearnerError: PEFT is not installed, the directory holds none, or one of another model.
    """
    peft, path = _peft(), Path(directory)
    if not (path / "adapter_config.json").is_file():
        raise LearnerError(f"lora: {path} holds no adapter_config.json")
    try:
        with _tied_is_known():
            loaded = peft.PeftModel.from_pretrained(model, str(path), is_trainable=True)
    # The boundary to PEFT: a broken directory raises whatever the loader runs into.
    except Exception as error:
        raise LearnerError(
            f"lora: cannot load the adapter in {path}: {type(error).__name__}: {error}"
        ) from error
    return Adapter(loaded)


@contextmanager
def _tied_is_known() -> Iterator[None]:
    """Without PEFT's warning of tied layers, whose merge is `Adapter`'s concern."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        yield


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise LearnerError("lora needs PEFT: install roll-learners[lora]") from error
    return peft
