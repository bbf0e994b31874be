"""LoRA adapters of the engine's model, through PEFT; needs the extra `lora` once an adapter is loaded.

All calls but the reading of `versions` are made on the engine's thread.
"""

import warnings
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from roll_rollout.adapter import AdapterConfig, AdapterUpdate
from roll_rollout.errors import EngineLibraryError, WeightMismatch

_PREFIX = "base_model.model."


class AdapterBank:
    """The adapters that are loaded into a model, and the one that is on.

    Args:
        model: Gets adapter layers when the first adapter is loaded; without one it stays as it is.

    Attributes:
        active: The adapter that forward passes apply; None for the weights as they are.
        versions: Policy version of every adapter by name.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.active: str | None = None
        self.versions: dict[str, int] = {}
        self._model = model
        self._slots: dict[str, str] = {}
        self._configs: dict[str, AdapterConfig] = {}
        self._next_slot = 0

    def load(self, update: AdapterUpdate) -> None:
        """Loads an adapter, or puts other weights in the place of its old ones.

        Raises:
            WeightMismatch: A tensor is unknown, missing or of another shape, or no module is a target.
            EngineLibraryError: PEFT is not installed.
        """
        same_shape = self._configs.get(update.name) == update.config
        slot = self._slots[update.name] if same_shape else self._inject(update)
        try:
            self._write(slot, update)
        except WeightMismatch:
            if not same_shape:
                self._delete(slot)
            raise
        if not same_shape and update.name in self._slots:
            self._delete(self._slots[update.name])
        self._slots[update.name] = slot
        self._configs[update.name] = update.config
        self.versions[update.name] = update.version
        self.activate(self.active)

    def unload(self, name: str) -> None:
        """Forgets a loaded adapter."""
        if self.active == name:
            self.activate(None)
        self._delete(self._slots.pop(name))
        del self._configs[name]

    def activate(self, name: str | None) -> None:
        """Lets forward passes apply an adapter from now on, or none."""
        for layer in self._layers():
            layer.enable_adapters(name is not None)
            if name is not None:
                layer.set_adapter(self._slots[name])
        self.active = name

    def _inject(self, update: AdapterUpdate) -> str:
        """Adds layers for an adapter to the model; they do nothing yet. Returns their name."""
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            install = 'pip install "roll-rollout[lora]"'
            raise EngineLibraryError(f"adapter {update.name!r}: needs peft ({install})") from error
        config, slot = update.config, f"roll_{self._next_slot}"
        self._next_slot += 1
        settings = LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type] # annotated as int; it only divides it
            target_modules=list(config.target_modules),
            use_rslora=config.rank_stabilised,
            lora_dropout=0.0,
        )
        try:
            with warnings.catch_warnings():
                # Several adapters in one model are what this class is for.
                warnings.filterwarnings("ignore", message="Already found a `peft_config`")
                inject_adapter_in_model(settings, self._model, adapter_name=slot)
        except ValueError as error:
            where = f"adapter {update.name!r}: target_modules {list(config.target_modules)}"
            raise WeightMismatch(f"{where} do not fit the model: {error}") from error
        self._model.train(False)
        self.activate(self.active)
        return slot

    def _write(self, slot: str, update: AdapterUpdate) -> None:
        """Copies tensors into the layers of a slot once all of them are known to fit."""
        where = f"adapter {update.name!r}, version {update.version}"
        targets = {
            _PREFIX + name.replace(f".{slot}.", "."): tensor
            for name, tensor in self._model.named_parameters()
            if f".{slot}." in name
        }
        arrived: dict[str, torch.Tensor] = {}
        for bucket in update.buckets:
            for name, dtype, shape, payload in bucket.tensors():
                if name not in targets:
                    raise WeightMismatch(f"{where}: tensor {name!r} is unknown to the model")
                if tuple(targets[name].shape) != shape:
                    needed = list(targets[name].shape)
                    raise WeightMismatch(f"{where}: tensor {name!r} is {list(shape)}, needed is {needed}")
                arrived[name] = torch.from_numpy(np.array(payload)).view(getattr(torch, dtype)).reshape(shape)
        missing = sorted(targets.keys() - arrived.keys())
        if missing:
            raise WeightMismatch(f"{where}: tensor {missing[0]!r} is missing ({len(missing)} are)")
        with torch.no_grad():
            for name, tensor in arrived.items():
                targets[name].copy_(tensor)

    def _delete(self, slot: str) -> None:
        with warnings.catch_warnings():
            # The layers turn to another adapter; `activate` says to which.
            warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
            for layer in self._layers():
                layer.delete_adapter(slot)

    def _layers(self) -> list[Any]:
        """Returns the model's adapter layers: PEFT's `BaseTunerLayer`s, which it leaves without types."""
        if not self._next_slot:
            return []
        from peft.tuners.tuners_utils import BaseTunerLayer

        return [module for module in self._model.modules() if isinstance(module, BaseTunerLayer)]
