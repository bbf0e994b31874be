"""From a learner's tensors to an engine's: lent memory is used as it is, copied memory is its own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from roll_rollout import AdapterConfig, GenerateRequest, SamplingParams, WeightMismatch
from roll_rollout.sync import AdapterHeader, load_arrival
from roll_rollout.torch_weights import tensor_bytes
from roll_rollout.transformers_engine import TransformersEngine
from roll_rollout.transformers_engine.model_weights import ModelWeights
from transformers import LlamaConfig, LlamaForCausalLM
from transports_of_tests import KINDS, InProcessReceiver, InProcessSender, make_transport, whole

PROMPT = np.array([3, 4, 5], dtype=np.int32)


def model(seed: int, *, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def exported(source: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = source.state_dict(keep_vars=True)
    return {name: named[name].detach() for name in named if name != "lm_head.weight"}


async def sampled(engine: TransformersEngine, seed: int = 0) -> list[float]:
    request = GenerateRequest(id="x", prompt_ids=PROMPT, seed=seed, sampling=SamplingParams(max_tokens=6))
    completion = await engine.generate(request)
    return [*completion.token_ids.tolist(), *completion.logprobs.tolist()]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_generates_as_the_learner_would_over_every_transport(
    kind: str, tmp_path: Path
) -> None:
    transport = make_transport(kind, tmp_path, names=("a",))
    learner, engine = model(1), TransformersEngine(model(2))
    twin = TransformersEngine(model(1))
    for version in (1, 2):
        published = transport.sender.publish(tensor_bytes(exported(learner).items()), version=version)
        (arrival,) = transport.fetch(published)
        receipt = await load_arrival(engine, arrival)
        transport.receivers[0].release(published)
        assert (receipt.version, receipt.checksum) == (version, published.checksum)
        assert await sampled(engine) == await sampled(twin)
        with torch.no_grad():
            for mine, other in zip(learner.parameters(), twin._core._model.parameters(), strict=True):
                mine.mul_(1.5)
                other.copy_(mine)
    transport.sender.close()
    await engine.close()
    await twin.close()


def test_lent_tensors_become_the_engines_and_the_next_copy_leaves_the_learner_alone() -> None:
    learner, receiving = model(1), model(2)
    weights, tensors = ModelWeights(receiving), exported(learner)
    lent = InProcessSender(share=True).publish(tensor_bytes(tensors.items()), version=1)
    assert weights.load(whole(InProcessReceiver().fetch(lent, deadline_s=1))) == lent.checksum
    for name, tensor in exported(receiving).items():
        assert tensor.data_ptr() == tensors[name].data_ptr()
    assert receiving.lm_head.weight.data_ptr() == tensors["model.embed_tokens.weight"].data_ptr()

    before = {name: tensor.clone() for name, tensor in tensors.items()}
    other = exported(model(3))
    copied = InProcessSender(share=False).publish(tensor_bytes(other.items()), version=2)
    weights.load(whole(InProcessReceiver().fetch(copied, deadline_s=1)))
    for name, tensor in exported(receiving).items():
        assert torch.equal(tensor, other[name])
        assert tensor.data_ptr() not in (tensors[name].data_ptr(), other[name].data_ptr())
        assert torch.equal(tensors[name], before[name])


def test_a_lent_update_of_other_bytes_changes_no_tensor() -> None:
    learner, receiving = model(1), model(2)
    weights = ModelWeights(receiving)
    before = {name: tensor.clone() for name, tensor in exported(receiving).items()}
    published = InProcessSender(share=True).publish(tensor_bytes(exported(learner).items()), version=1)
    with torch.no_grad():
        learner.model.norm.weight.add_(1)
    with pytest.raises(WeightMismatch, match=r"'model\.norm\.weight' arrived with other bytes"):
        weights.load(whole(InProcessReceiver().fetch(published, deadline_s=1)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in exported(receiving).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_that_are_views_arrive_too(dtype: torch.dtype) -> None:
    receiving = torch.nn.Linear(3, 4, bias=False, dtype=dtype)
    weights = ModelWeights(_Named(receiving))  # type: ignore[arg-type]  # as much of a model as is used
    wanted = torch.arange(12.0).reshape(3, 4).T.to(dtype)
    for share in (True, False):
        published = InProcessSender(share=share).publish(tensor_bytes([("weight", wanted)]), version=1)
        weights.load(whole(InProcessReceiver().fetch(published, deadline_s=1)))
        assert torch.equal(receiving.weight, wanted)


class _Named:
    device = torch.device("cpu")

    def __init__(self, module: torch.nn.Module) -> None:
        self.state_dict = module.state_dict


@pytest.mark.parametrize("kind", ["in_process", "shared_memory", "delta over object_store", "broadcast"])
async def test_an_adapter_alone_is_published_and_generated_with(kind: str, tmp_path: Path) -> None:
    transport = make_transport(kind, tmp_path, names=("a",))
    engine = TransformersEngine(model(1))
    plain = await sampled(engine)
    config = AdapterConfig(rank=2, alpha=8.0, target_modules=("q_proj", "v_proj"))
    prefix, generator = "base_model.model.model.layers.0.self_attn", torch.Generator().manual_seed(0)
    shapes = {"q_proj": (16, 16), "v_proj": (16, 8)}
    adapter = {}
    for module, (wide, out) in shapes.items():
        adapter[f"{prefix}.{module}.lora_A.weight"] = torch.randn(2, wide, generator=generator)
        adapter[f"{prefix}.{module}.lora_B.weight"] = torch.randn(out, 2, generator=generator)
    published = transport.sender.publish(
        tensor_bytes(adapter.items()), version=5, adapter=AdapterHeader(name="policy", config=config)
    )
    (arrival,) = transport.fetch(published)
    receipt = await load_arrival(engine, arrival)
    assert (receipt.version, receipt.checksum) == (5, published.checksum)
    request = GenerateRequest(
        id="y", prompt_ids=PROMPT, seed=0, sampling=SamplingParams(max_tokens=6), adapter="policy"
    )
    adapted = await engine.generate(request)
    assert adapted.versions == ((5, 6),)
    assert [*adapted.token_ids.tolist(), *adapted.logprobs.tolist()] != plain
    assert await sampled(engine) == plain
    transport.sender.close()
    await engine.close()
