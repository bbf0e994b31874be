"""What each process of a test's group runs: `python group_run.py RANK RANKS DIRECTORY SCENARIO...`.

Every scenario writes DIRECTORY/NAME-RANK.pt: what it returned, or the traceback of what it raised.
"""

import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from roll_learners import OptimizerSettings, PolicyObjective, Sample, make_algorithm
from roll_learners.fsdp2 import Fsdp2Learner, Layout, Sharding
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCABULARY = 32
STEPS = 5


def make_model(kind: str = "dense", *, tied: bool = True, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    if kind == "dense":
        return Qwen3ForCausalLM(Qwen3Config(**sizes)).to(dtype)
    experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts)).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("mlp.gate.weight"):  # zeros as transformers makes them: every expert alike
            torch.nn.init.normal_(parameter)
    return model


def make_samples(count: int = 11, *, seed: int = 0) -> list[Sample]:
    """Groups of up to 4 with one prompt, of very different lengths."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(count):
        if i % 4 == 0:
            prompt = rng.integers(0, VOCABULARY, rng.integers(1, 9)).astype(np.int32)
        response = rng.integers(0, VOCABULARY, rng.integers(1, 30)).astype(np.int32)
        samples.append(
            Sample.from_completion(
                prompt,
                response,
                rng.uniform(-4, -1, len(response)).astype(np.float32),
                reward=float(rng.random() < 0.5),
                group=i // 4,
            )
        )
    return samples


def optimizer(**settings: Any) -> OptimizerSettings:
    return OptimizerSettings(
        **({"learning_rate": 1e-2, "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": 0.5} | settings)
    )


def make_learner(model: PreTrainedModel, sharding: Sharding, *, tokens: int = 64) -> Fsdp2Learner:
    return Fsdp2Learner(
        model, sharding=sharding, optimizer=optimizer(), micro_batch_tokens=tokens, temperature=0.9
    )


def trained(learner: Any, *, steps: int = STEPS) -> dict[str, Any]:
    """Metrics of some updates, and log-probs and weights after them."""
    objective = PolicyObjective(
        make_algorithm(
            "gspo", kl={"placement": "loss", "estimator": "k3", "coef": 0.1}, entropy_coef=0.01
        )
    )
    metrics = []
    for step in range(steps):
        samples = make_samples(seed=step)
        rng = np.random.default_rng(step)
        columns = {
            name: [rng.normal(-2, 1, len(sample.token_ids)) for sample in samples]
            for name in ("advantages", "ref_logprobs")
        }
        metrics.append(learner.update(samples, objective, **columns).metrics)
    weights = {name: tensor.clone() for name, tensor in learner.export_weights()}
    return {"metrics": metrics, "logprobs": learner.logprobs(make_samples(seed=99)), "weights": weights}


def equality(
    layout: dict[str, int], kind: str = "dense", *, tied: bool = True, double: bool = False, **more: Any
) -> Callable[[Path], Any]:
    def run(_: Path) -> Any:
        dtype = torch.float64 if double else torch.float32
        sharding = Sharding(layout=Layout(ranks=dist.get_world_size(), **layout), **more)
        return trained(make_learner(make_model(kind, tied=tied, dtype=dtype), sharding))

    return run


SCENARIOS: dict[str, Callable[[Path], Any]] = {
    "shards": equality({}),
    "shards untied, recomputed": equality({}, tied=False, recompute=True, reshard_after_forward=False),
    "shards double": equality({}, double=True),
    "shards moe": equality({}, "moe"),
    "tensor": equality({"tensor": 2}),
    "tensor untied": equality({"tensor": 2}, tied=False),
    "tensor double": equality({"tensor": 2}, double=True),
    "tensor moe": equality({"tensor": 2}, "moe"),
    "expert": equality({"expert": 2}, "moe"),
    "expert double": equality({"expert": 2}, "moe", double=True),
    "context": equality({"context": 2}),
    "context double": equality({"context": 2}, double=True),
    "replicas": equality({"replicas": 2}),
    "replicas moe": equality({"replicas": 2}, "moe"),
    "replicas tensor": equality({"replicas": 2, "tensor": 2}),
    "shards tensor": equality({"tensor": 2}),
    "context tensor": equality({"context": 2, "tensor": 2}),
    "context 4": equality({"context": 4}),
    "expert 4": equality({"expert": 4}, "moe"),
}


def main() -> None:
    rank, ranks, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    for name in sys.argv[4:]:
        try:
            result = SCENARIOS[name](directory)
        except Exception:
            result = traceback.format_exc()
        torch.save(result, directory / f"{name}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
