"""From a learner's weights to an engine's completions and back to the learner: every number agrees."""

import numpy as np
import pytest
import torch
from roll_launch.samples import SampleError, sample_from_completion
from roll_learners import LocalLearner, OptimizerSettings, make_algorithm, policy_step
from roll_rollout import Completion, GenerateRequest, SamplingParams, weights_checksum
from roll_rollout.torch_weights import weight_update
from roll_rollout.transformers_engine import TransformersEngine
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

SHAPE = {
    "vocab_size": 31,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def _model(kind: str, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    if kind == "qwen3, tied":
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True))
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))


async def _generate(engine: TransformersEngine, temperature: float) -> list[Completion]:
    sampling = SamplingParams(max_tokens=12, temperature=temperature, stop_token_ids=(2,))
    prompts = [np.array([5, 6, 7, 8][: 2 + group], dtype=np.int32) for group in (0, 1)]
    return [
        await engine.generate(
            GenerateRequest(id=f"{group}-{seed}", prompt_ids=prompt, seed=seed, sampling=sampling)
        )
        for group, prompt in enumerate(prompts)
        for seed in range(4)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", ["qwen3, tied", "llama, untied"])
async def test_behavior_logprobs_equal_the_learners_after_each_sync(kind: str, temperature: float) -> None:
    learner = LocalLearner(
        _model(kind, seed=0), optimizer=OptimizerSettings(learning_rate=1e-2), temperature=temperature
    )
    engine = TransformersEngine(_model(kind, seed=1), max_batch=8)
    for version in range(3):
        update = weight_update(learner.export_weights(), version=version)
        receipt = await engine.update_weights(update)
        assert (receipt.version, receipt.checksum) == (version, weights_checksum(update.buckets))
        completions = await _generate(engine, temperature)
        samples = [
            sample_from_completion(completion, reward=float(index % 3 == 0), group=index // 4)
            for index, completion in enumerate(completions)
        ]
        for completion, logprobs in zip(completions, learner.logprobs(samples), strict=True):
            start = len(completion.prompt_ids)
            np.testing.assert_allclose(logprobs[start:], completion.logprobs, atol=2e-5)
            assert completion.oldest_version == version
        rng = np.random.default_rng(version)
        trained = policy_step(learner, samples, make_algorithm("grpo"), mini_batches=2, epochs=1, rng=rng)
        assert trained.metrics["actor/grad_norm"] > 0
    await engine.close()


async def test_sampled_ids_are_trained_untouched_with_their_engines_logprobs() -> None:
    engine = TransformersEngine(_model("llama, untied", seed=1), max_batch=8, version=4)
    for completion in await _generate(engine, 1.0):
        sample = sample_from_completion(completion, reward=0.5, group=9)
        assert sample.token_ids[sample.response_mask].tolist() == completion.token_ids.tolist()
        assert sample.token_ids[~sample.response_mask].tolist() == completion.prompt_ids.tolist()
        assert sample.behavior_logprobs is not None
        np.testing.assert_array_equal(sample.behavior_logprobs[sample.response_mask], completion.logprobs)
        assert (sample.reward, sample.group, sample.version) == (0.5, 9, 4)
        assert sample.truncated == (completion.finish_reason == "length")
    await engine.close()


def test_text_that_was_tokenised_again_is_no_sample() -> None:
    completion = Completion(
        request_id="7",
        prompt_ids=np.array([5, 6], dtype=np.int32),
        token_ids=np.array([8, 2], dtype=np.int32),
        logprobs=np.array([-0.1, -0.2], dtype=np.float32),
        versions=((0, 2),),
        finish_reason="stop",
        seed=1,
        exact=False,
    )
    with pytest.raises(SampleError, match="completion 7 holds ids that were not sampled"):
        sample_from_completion(completion, reward=1.0, group=0)
