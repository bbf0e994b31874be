"""LoRA adapters on their way into an engine: weights in PEFT's names, and what they apply to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from roll_rollout.errors import WeightMismatch
from roll_rollout.weights import WeightBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """The shape of a LoRA adapter, for example

        AdapterConfig(rank=8, alpha=16.0, target_modules=("q_proj", "v_proj"))

    Attributes:
        rank: Inner width, at least 1.
        alpha: The product of the two matrices is scaled by alpha / rank, or alpha / sqrt(rank).
        target_modules: Names of the linear layers that it changes, as PEFT takes them.
        rank_stabilised: Whether the scale has the square root (rsLoRA).

    Raises:
        WeightMismatch: A value is out of its range.
    """

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    rank_stabilised: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise WeightMismatch(f"AdapterConfig.rank: got {self.rank}, allowed is 1 or more")
        if not self.target_modules:
            raise WeightMismatch("AdapterConfig.target_modules: got none, allowed is one name or more")

    def peft_json(self) -> str:
        """Returns the text of PEFT's `adapter_config.json`."""
        return json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": self.rank,
                "lora_alpha": self.alpha,
                "target_modules": list(self.target_modules),
                "use_rslora": self.rank_stabilised,
                "bias": "none",
                "lora_dropout": 0.0,
                "inference_mode": True,
            },
            indent=2,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterUpdate:
    """All weights of one adapter at one policy version, for example

        AdapterUpdate(name="policy", version=3, config=AdapterConfig(...), buckets=(bucket,))

    Attributes:
        name: What requests ask for as `GenerateRequest.adapter`.
        version: Policy version of completions that it draws.
        config: Its shape.
        buckets: Its tensors under PEFT's names, such as
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
    """

    name: str
    version: int
    config: AdapterConfig
    buckets: tuple[WeightBucket, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise WeightMismatch("AdapterUpdate.name: got an empty name")
        names = [name for bucket in self.buckets for name in bucket.names]
        check_adapter_names(self.name, names)


def check_adapter_names(adapter: str, names: Sequence[str]) -> None:
    """Checks that the tensors of an adapter come in pairs, each once.

    Raises:
        WeightMismatch: Names the tensor that is no part of a pair, is duplicated, or lacks its partner.
    """
    where = f"adapter {adapter!r}"
    seen: set[str] = set()
    for name in names:
        if ".lora_A." not in name and ".lora_B." not in name:
            allowed = "allowed are those with '.lora_A.' or '.lora_B.'"
            raise WeightMismatch(f"{where}: tensor {name!r} is no part of a LoRA adapter, {allowed}")
        if name in seen:
            raise WeightMismatch(f"{where}: tensor {name!r} is duplicated")
        seen.add(name)
    if not seen:
        raise WeightMismatch(f"{where}: it has no tensors")
    for name in sorted(seen):
        first = ".lora_A." in name
        partner = name.replace(".lora_A.", ".lora_B.") if first else name.replace(".lora_B.", ".lora_A.")
        if partner not in seen:
            raise WeightMismatch(f"{where}: tensor {name!r} came without {partner!r}")
