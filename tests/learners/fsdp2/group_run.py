"""What each process of a test's group runs: `python group_run.py RANK RANKS DIRECTORY SCENARIO...`.

Every scenario writes DIRECTORY/NAME-RANK.pt: what it returned, or the traceback of what it raised.
"""

import dataclasses
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
from roll_learners import (
    LearnerError,
    OptimizerSettings,
    PolicyObjective,
    Sample,
    SupervisedObjective,
    check_learner,
    make_algorithm,
)
from roll_learners.fsdp2 import (
    Fsdp2Learner,
    Layout,
    Sharding,
    load_checkpoint,
    save_checkpoint,
    save_checkpoint_async,
)
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCABULARY = 32
STEPS = 5


def make_model(
    kind: str = "dense", *, tied: bool = True, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
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
    config = Qwen3MoeConfig(**sizes, **experts)
    if dtype == torch.float64:  # which the grouped kernel does not take
        config._experts_implementation = "eager"
    model = Qwen3MoeForCausalLM(config).to(dtype)
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
        **({"learning_rate": 1e-3, "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": 0.5} | settings)
    )


def make_learner(model: PreTrainedModel, sharding: Sharding, *, tokens: int = 64) -> Fsdp2Learner:
    return Fsdp2Learner(
        model, sharding=sharding, optimizer=optimizer(), micro_batch_tokens=tokens, temperature=0.9
    )


def trained(learner: Any, *, steps: int = STEPS) -> dict[str, Any]:
    """Metrics of some updates, and log-probs and weights after them."""
    objective = PolicyObjective(
        make_algorithm("gspo", kl={"placement": "loss", "estimator": "k3", "coef": 0.1}, entropy_coef=0.01)
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


def conformance(_: Path) -> Any:
    return [
        (result.name, result.passed, result.detail)
        for result in check_learner(
            lambda tokens: Fsdp2Learner(
                make_model(dtype=torch.float64),
                sharding=Sharding(layout=Layout(ranks=dist.get_world_size())),
                optimizer=OptimizerSettings(learning_rate=1e-2),
                micro_batch_tokens=tokens,
            ),
            vocab_size=VOCABULARY,
            tolerance=1e-9,
        )
    ]


def uneven(_: Path) -> Any:
    """One sample for all ranks, none that is trained, and a batch without samples."""
    learner = make_learner(make_model(), Sharding(layout=Layout(ranks=dist.get_world_size())))
    objective = SupervisedObjective()
    one = learner.update(make_samples(1), objective).metrics
    untrained = dataclasses.replace(
        make_samples(1)[0], response_mask=np.zeros_like(make_samples(1)[0].response_mask)
    )
    nothing = learner.update([untrained], objective).metrics
    return {
        "one": one,
        "nothing": nothing,
        "scored": learner.logprobs([untrained]),
        "none": learner.logprobs([]),
    }


def refusals(_: Path) -> Any:
    """What each raises; all ranks go on together afterwards."""
    ranks = dist.get_world_size()
    learner = make_learner(make_model(), Sharding(layout=Layout(ranks=ranks)), tokens=20)
    samples, told = make_samples(), []
    short = [np.zeros(3) for _ in samples]
    for call in (
        lambda: learner.update(samples, SupervisedObjective()),
        lambda: learner.update(samples[:1], SupervisedObjective(), advantages=short[:1]),
        lambda: learner.update(samples[:1], SupervisedObjective(), advantages=short),
        lambda: make_learner(make_model(), Sharding(layout=Layout(ranks=ranks + 1))),
        lambda: make_learner(make_model(), Sharding(layout=Layout(ranks=ranks), offload=True)),
        learner.state_dict,
    ):
        try:
            call()
        except LearnerError as error:
            told.append(str(error))
    told.append(f"{learner.update(samples[:1], SupervisedObjective()).metrics['skipped_steps']}")
    return told


def mixed(_: Path) -> Any:
    ranks = Layout(ranks=dist.get_world_size())
    halves = trained(make_learner(make_model(), Sharding(layout=ranks, precision="bfloat16")), steps=2)
    packed = trained(make_learner(make_model(), Sharding(layout=ranks, packing=True)))
    return {"halves": halves, "packed": packed}


def saved(directory: Path) -> Any:
    """Trains, saves in both ways, and goes on; what it comes to is what a resume must come to."""
    ranks = dist.get_world_size()
    learner = make_learner(make_model("moe"), Sharding(layout=Layout(ranks=ranks)))
    trained(learner, steps=2)
    background = save_checkpoint_async(learner, directory / "background")
    save_checkpoint(learner, directory / "checkpoint")
    before = learner.logprobs(make_samples(seed=99))
    learner.save_pretrained(directory / "model")
    after = trained(learner, steps=2)
    background.wait()
    return {"before": before, "after": after, "random": torch.get_rng_state()}


def resumed(name: str, **layout: int) -> Callable[[Path], Any]:
    def run(directory: Path) -> Any:
        model = make_model("moe")
        for parameter in model.parameters():
            torch.nn.init.ones_(parameter)
        learner = make_learner(model, Sharding(layout=Layout(ranks=dist.get_world_size(), **layout)))
        learner.logprobs(make_samples(seed=99))  # which gathers what is then overwritten
        load_checkpoint(learner, directory / name)
        before = learner.logprobs(make_samples(seed=99))
        return {"before": before, "after": trained(learner, steps=2), "updates": learner.updates}

    return run


def wrong_checkpoints(directory: Path) -> Any:
    learner = make_learner(make_model(), Sharding(layout=Layout(ranks=dist.get_world_size())))
    told = []
    for path in (directory / "checkpoint", directory / "nowhere"):
        try:
            load_checkpoint(learner, path)
        except LearnerError as error:
            told.append(str(error))
    return told


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
    "conformance": conformance,
    "uneven": uneven,
    "refusals": refusals,
    "mixed": mixed,
    "saved": saved,
    "resumed": resumed("checkpoint"),
    "resumed from the background": resumed("background"),
    "resumed on tensor ranks": resumed("checkpoint", tensor=2),
    "resumed on expert ranks": resumed("checkpoint", expert=2),
    "wrong checkpoints": wrong_checkpoints,
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
