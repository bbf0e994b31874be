"""What groups of processes do: comparisons with one process, which `group_run.py` runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from roll_learners import (
    LearnerError,
    LocalCritic,
    LocalLearner,
    OptimizerSettings,
    PolicyObjective,
    Sample,
    ValueObjective,
    check_learner,
    make_algorithm,
    policy_step,
)
from roll_learners.megatron import (
    DirectoryWeights,
    MegatronCritic,
    MegatronLayout,
    MegatronLearner,
    MegatronScorer,
    ModelWeights,
    close_groups,
    load_checkpoint,
    save_checkpoint,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY, STEPS = 25, 5
SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.3,
    max_position_embeddings=128,
)
MIXTURE: dict[str, Any] = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, head_dim=8
)
# eps keeps AdamW's first step from taking rounding errors for gradients.
SETTINGS = OptimizerSettings(learning_rate=1e-2, weight_decay=0.1, eps=1e-3)


def config(family: str, *, tied: bool) -> PreTrainedConfig:
    own = {"tie_word_embeddings": tied, **SIZES}
    if family == "qwen3_moe":
        return Qwen3MoeConfig(**own, **MIXTURE)
    return {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[family](
        **own, **({} if family == "qwen2" else {"head_dim": 8})
    )


def model(family: str = "qwen3", *, tied: bool = True, value: bool = False) -> PreTrainedModel:
    torch.manual_seed(0)
    settings = config(family, tied=tied)
    settings.num_labels = 1
    kind: Any = AutoModelForTokenClassification if value else AutoModelForCausalLM
    made: PreTrainedModel = kind.from_config(settings)
    for parameter in made.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return made.eval()


def samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    return [
        Sample.from_completion(
            rng.integers(0, VOCABULARY, rng.integers(1, 6)).astype(np.int32),
            rng.integers(0, VOCABULARY, rng.integers(1, 12)).astype(np.int32),
            reward=reward,
            group=i // 4,
        )
        for i, reward in enumerate((1, 0, 0, 1, 0.5, 1, 0, 0))
    ]


def learner(made: PreTrainedModel, options: dict[str, Any], **layout: Any) -> MegatronLearner:
    given: dict[str, Any] = dict(optimizer=SETTINGS, micro_batch_tokens=40, device="cpu") | options
    return MegatronLearner(ModelWeights(made), layout=MegatronLayout(**layout), **given)


def furthest(one: Any, other: Any) -> float:
    """Largest difference between two lists of arrays."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def parity(
    family: str = "qwen3", *, tied: bool = True, options: Any = None, **layout: Any
) -> dict[str, float]:
    """Differences from the local learner, before and after `STEPS` steps of two updates each."""
    made = model(family, tied=tied)
    own = learner(made, options or {}, **layout)
    local = LocalLearner(made, optimizer=SETTINGS)
    batch = samples()
    seen = {"before": furthest(own.logprobs(batch), local.logprobs(batch)), "metrics": 0.0}
    algorithm = make_algorithm("dapo", entropy_coef=0.01)
    for step in range(STEPS):
        one, other = (
            policy_step(
                each, batch, algorithm, mini_batches=2, epochs=1, rng=np.random.default_rng(step)
            ).metrics
            for each in (own, local)
        )
        assert one.keys() == other.keys()
        worst = max(abs(one[name] - other[name]) for name in other)
        seen["metrics"] = max(seen["metrics"], worst)
    seen["after"] = furthest(own.logprobs(batch), local.logprobs(batch))
    state = local.model.state_dict()
    exported = dict(own.export_weights())
    dense = [name for name in exported if name in state]
    seen["weights"] = max(float((exported[name] - state[name]).abs().max()) for name in dense)
    return seen


def round_trip(family: str, *, tied: bool, directory: Path, **layout: Any) -> dict[str, Any]:
    """Whether a directory is read and written bit by bit."""
    made = model(family, tied=tied)
    if dist.get_rank() == 0:
        made.save_pretrained(directory / "given")
    dist.barrier()
    weights = DirectoryWeights(directory / "given")
    scorer = MegatronScorer(weights, layout=MegatronLayout(**layout), device="cpu")
    scorer.save_pretrained(directory / "written")
    read: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory / "written")
    state, again = made.state_dict(), read.state_dict()
    batch = samples()
    return {
        "equal": state.keys() == again.keys() and all(torch.equal(state[n], again[n]) for n in state),
        "logprobs": furthest(scorer.logprobs(batch), LocalLearner(made, optimizer=SETTINGS).logprobs(batch)),
    }


def conforms(**layout: Any) -> list[str]:
    """Properties of a learner that do not hold."""

    def make(micro_batch_tokens: int) -> MegatronLearner:
        return learner(model(tied=False), {"micro_batch_tokens": micro_batch_tokens}, **layout)

    results = check_learner(make, vocab_size=VOCABULARY, tolerance=2e-4)
    return [f"{each.name}: {each.detail}" for each in results if not each.passed]


def values(**layout: Any) -> dict[str, float]:
    """A critic's differences from the local one."""
    made = model(value=True, tied=False)
    own = MegatronCritic(
        ModelWeights(made), layout=MegatronLayout(**layout), optimizer=SETTINGS, device="cpu"
    )
    local = LocalCritic(made, optimizer=SETTINGS)
    batch = samples()
    rng = np.random.default_rng(0)
    columns: Any = {
        name: [rng.normal(size=len(sample.token_ids)) for sample in batch]
        for name in ("returns", "old_values")
    }
    before = furthest(own.values(batch), local.values(batch))
    norms = []
    for _ in range(3):
        one, other = (each.update(batch, ValueObjective(), **columns) for each in (own, local))
        norms.append(abs(one.metrics["grad_norm"] - other.metrics["grad_norm"]))
    after = furthest(own.values(batch), local.values(batch))
    scores = float(np.abs(own.scores(batch) - local.scores(batch)).max())
    return {"before": before, "norm": max(norms), "after": after, "scores": scores}


def resumed(directory: Path, *steps: dict[str, Any], family: str = "qwen3") -> dict[str, float]:
    """Differences from a learner that never stopped; every layout goes on where the last one did."""
    made = model(family)
    local, batch = LocalLearner(made, optimizer=SETTINGS), samples()
    start = model(family)
    rng = np.random.default_rng(0)
    columns: Any = {"advantages": [rng.normal(size=len(sample.token_ids)) for sample in batch]}
    objective = PolicyObjective(make_algorithm("dapo"))
    worst = norm = 0.0
    updates = 0
    for number, layout in enumerate(steps):
        own = learner(start, {}, **layout)
        if number:
            load_checkpoint(own, directory / str(number - 1))
        for _ in range(2):
            one, other = (each.update(batch, objective, **columns) for each in (own, local))
            norm = max(norm, abs(one.metrics["grad_norm"] - other.metrics["grad_norm"]))
        worst = max(worst, furthest(own.logprobs(batch), local.logprobs(batch)))
        save_checkpoint(own, directory / str(number))
        updates = own.updates
        if number + 1 == len(steps):
            own.save_pretrained(directory / "huggingface")
        close_groups()
    saved: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory / "huggingface")
    # Buffers that are no weights are not made as usual while the factories are redirected.
    read = model(family)
    read.load_state_dict(saved.state_dict())
    exported = furthest(LocalLearner(read, optimizer=SETTINGS).logprobs(batch), local.logprobs(batch))
    return {"logprobs": worst, "norm": norm, "updates": float(updates), "exported": exported}


def refused(directory: Path) -> list[str]:
    """Messages of what is refused when there are groups already, or a checkpoint is another's."""
    own = learner(model(), {}, tensor=2)
    messages = []

    def expect(call: Callable[[], object]) -> None:
        try:
            call()
        except LearnerError as error:
            messages.append(str(error))

    expect(lambda: learner(model(), {}, pipeline=2))
    expect(lambda: learner(model(), {"dtype": "float64"}, tensor=2))
    expect(lambda: load_checkpoint(own, directory / "nothing"))
    expect(lambda: own.update(samples(), PolicyObjective(make_algorithm("dapo")), advantages=np.ones(1)))
    long = Sample.from_completion(np.zeros(30, np.int32), np.zeros(30, np.int32))
    expect(lambda: own.logprobs([long]))
    alien = Sample.from_completion(np.zeros(2, np.int32), np.full(2, VOCABULARY, np.int32))
    expect(lambda: own.logprobs([alien]))
    short: Any = {"advantages": [np.ones(1) for _ in samples()]}
    expect(lambda: own.update(samples(), PolicyObjective(make_algorithm("dapo")), **short))
    return messages


def half(**layout: Any) -> dict[str, float]:
    """bfloat16 weights with float32 copies, against float32."""
    made, batch = model(tied=False), samples()
    own = learner(made, {"dtype": "bfloat16"}, **layout)
    local = LocalLearner(made, optimizer=SETTINGS)
    objective = PolicyObjective(make_algorithm("dapo"))
    columns: Any = {"advantages": [np.ones(len(sample.token_ids)) for sample in batch]}
    ratios = []
    for _ in range(3):
        one, other = (each.update(batch, objective, **columns).metrics for each in (own, local))
        ratios.append(abs(one["grad_norm"] / other["grad_norm"] - 1))
    return {"norm": max(ratios), "logprobs": furthest(own.logprobs(batch), local.logprobs(batch))}


def gated_delta(_: Path) -> str:
    """What the library says of the layers of Qwen3.5."""
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet

    made = learner(model(), {}, tensor=2)
    try:
        GatedDeltaNet(config=made.loaded.parts[0].config, submodules=None)
    except ImportError as error:
        return f"refused: {error}"
    return "built"


SCENARIOS: dict[str, Callable[[Path], object]] = {
    "tensor": lambda _: parity(tensor=2),
    "tensor-sequence": lambda _: parity("llama", tensor=2, sequence_parallel=True),
    "tensor-bias": lambda _: parity("qwen2", tied=False, tensor=2),
    "pipeline": lambda _: parity(pipeline=2),
    "pipeline-untied": lambda _: parity(tied=False, pipeline=2),
    "virtual": lambda _: parity(pipeline=2, virtual_pipeline=2),
    "data": lambda _: parity(),
    "data-whole-optimizer": lambda _: parity(distributed_optimizer=False),
    "expert": lambda _: parity("qwen3_moe", tied=False, expert=2),
    "expert-tensor": lambda _: parity("qwen3_moe", tensor=2, sequence_parallel=True),
    "context": lambda _: parity(context=2),
    "recompute-layers": lambda _: parity(tensor=2, recompute="layers"),
    "recompute-attention": lambda _: parity(pipeline=2, recompute="attention"),
    "packing": lambda _: parity(options={"packing": True}, tensor=2, sequence_parallel=True),
    "packing-data": lambda _: parity(options={"packing": True, "temperature": 1.0}),
    "tensor-pipeline": lambda _: parity(tensor=2, pipeline=2),
    "tensor-pipeline-sequence": lambda _: parity(
        "llama", tied=False, tensor=2, pipeline=2, sequence_parallel=True
    ),
    "tensor-data": lambda _: parity(tensor=2),
    "expert-pipeline": lambda _: parity("qwen3_moe", tied=False, expert=2, pipeline=2),
    "context-tensor": lambda _: parity(context=2, tensor=2, sequence_parallel=True),
    "trip-llama": lambda d: round_trip("llama", tied=False, directory=d, tensor=2),
    "trip-qwen2": lambda d: round_trip("qwen2", tied=True, directory=d, pipeline=2),
    "trip-qwen3": lambda d: round_trip("qwen3", tied=True, directory=d, tensor=2, sequence_parallel=True),
    "trip-qwen3_moe": lambda d: round_trip("qwen3_moe", tied=False, directory=d, expert=2),
    "conforms-tensor": lambda _: conforms(tensor=2),
    "conforms-data": lambda _: conforms(),
    "conforms-pipeline": lambda _: conforms(pipeline=2),
    "critic-tensor": lambda _: values(tensor=2, sequence_parallel=True),
    "critic-pipeline": lambda _: values(pipeline=2),
    "resumed": lambda d: resumed(d, {"tensor": 2}, {"pipeline": 2}, {}),
    "resumed-experts": lambda d: resumed(
        d, {"expert": 2}, {"pipeline": 2}, {"expert": 2}, family="qwen3_moe"
    ),
    "refused": refused,
    "gated-delta": lambda d: {"said": gated_delta(d)},
    "half": lambda _: half(tensor=2),
}
