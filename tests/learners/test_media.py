"""A model of vision and language is trained by the same learner, on what its processor makes of pictures."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from roll_learners import (
    ComputeSettings,
    Distillation,
    DistillationTeacher,
    LearnerError,
    LocalLearner,
    LocalScorer,
    Media,
    OptimizerSettings,
    Sample,
    SupervisedObjective,
    distillation_step,
    make_algorithm,
    policy_step,
    supervised_step,
)
from roll_learners.batch import total_counts
from roll_learners.gradient import accumulate_gradient
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Make = Callable[..., Any]
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
WORDS = ["<pad>", "<end>", *SPECIAL, "what", "colour", "is", "this", "?", "red", "blue", "green"]
ANSWERS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 255, 0)}
TEXT: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
TOKENS = {
    "image_token_id": WORDS.index("<|image_pad|>"),
    "video_token_id": WORDS.index("<|video_pad|>"),
    "vision_start_token_id": WORDS.index("<|vision_start|>"),
    "vision_end_token_id": WORDS.index("<|vision_end|>"),
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 24,
    "patch_size": 4,
    "out_hidden_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


class PicturesAlone(Qwen2_5_VLProcessor):
    """Without videos, whose processor needs torchvision, as does the check that there is one."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)


@pytest.fixture(scope="module")
def processor() -> PicturesAlone:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", additional_special_tokens=SPECIAL
    )
    pictures = Qwen2VLImageProcessorPil(
        patch_size=4, temporal_patch_size=2, merge_size=2, min_pixels=64, max_pixels=64 * 16
    )
    return PicturesAlone(image_processor=pictures, tokenizer=tokenizer, video_processor=None)


def qwen25() -> Any:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={**VISION, "fullatt_block_indexes": [1], "window_size": 16},
        **TOKENS,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3() -> Any:
    rope = {
        "rope_type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": 10000.0,
        "mrope_interleaved": True,
    }
    config = Qwen3VLConfig(
        text_config={**TEXT, "head_dim": 8, "rope_parameters": rope},
        vision_config={**VISION, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        **TOKENS,
    )
    return Qwen3VLForConditionalGeneration(config)


FAMILIES = {"qwen2.5-vl": qwen25, "qwen3-vl": qwen3}


def model_of(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return FAMILIES[family]().double().eval()


def sample(
    processor: Any, answer: str, size: tuple[int, int] | None, group: int = 0, reward: float = 1
) -> Sample:
    """A question, with a picture or without, and its answer."""
    text = "what colour is this ?"
    if size is None:
        made = processor(text=[text], return_tensors="np")
    else:
        picture = Image.new("RGB", size, ANSWERS[answer])
        made = processor(
            text=[f"<|vision_start|><|image_pad|><|vision_end|> {text}"],
            images=[picture],
            return_tensors="np",
        )
    prompt = made["input_ids"][0].astype(np.int32)
    response = np.array([WORDS.index(answer), WORDS.index("<end>")], np.int32)
    plain = Sample.from_completion(prompt, response, reward=reward, group=group)
    if size is None:
        return plain
    kinds = np.concatenate([made["mm_token_type_ids"][0], np.zeros(2)]).astype(np.int8)
    inputs = {name: made[name] for name in ("pixel_values", "image_grid_thw")}
    return dataclasses.replace(plain, media=Media(inputs=inputs, token_kinds=kinds))


@pytest.fixture
def samples(processor: Any) -> list[Sample]:
    """Pictures of different sizes among text alone, two answers a question."""
    return [
        sample(processor, "red", (24, 16), 0, 1),
        sample(processor, "blue", (24, 16), 0, 0),
        sample(processor, "blue", (16, 16), 1, 1),
        sample(processor, "green", None, 1, 0),
        sample(processor, "green", (32, 32), 2, 0),
        sample(processor, "red", None, 2, 1),
    ]


def plain_logprobs(model: Any, each: Sample) -> np.ndarray:
    """Of the trained tokens, by the model's own forward on one sample."""
    media = {}
    if each.media is not None:
        media = {name: torch.from_numpy(array) for name, array in each.media.inputs.items()}
        media["pixel_values"] = media["pixel_values"].double()
        media["mm_token_type_ids"] = torch.from_numpy(each.media.token_kinds.astype(np.int64))[None]
    ids = torch.from_numpy(each.token_ids.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = model(input_ids=ids, **media).logits[0].log_softmax(-1)
    trained = np.flatnonzero(each.response_mask)
    found: np.ndarray = logprobs[trained - 1, each.token_ids[trained].astype(np.int64)].numpy()
    return found


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("budget", [60, 4096])
def test_log_probs_are_those_of_the_models_own_forward(
    family: str, budget: int, samples: list[Sample]
) -> None:
    model = model_of(family)
    scored = LocalScorer(model, micro_batch_tokens=budget).logprobs(samples)
    for each, column in zip(samples, scored, strict=True):
        expected = plain_logprobs(model, each)
        np.testing.assert_allclose(column[each.response_mask], expected, rtol=0, atol=1e-6)


def test_the_processor_made_placeholders_and_positions_of_a_picture(samples: list[Sample]) -> None:
    media = samples[0].media
    assert media is not None
    grid = media.inputs["image_grid_thw"]
    assert grid.tolist() == [[1, 4, 6]]
    assert int((media.token_kinds == 1).sum()) == 4 * 6 // 4
    assert len(media.inputs["pixel_values"]) == 4 * 6


def test_another_picture_gives_other_log_probs(samples: list[Sample]) -> None:
    scorer = LocalScorer(model_of("qwen2.5-vl"))
    other = samples[1].media
    exchanged = dataclasses.replace(samples[0], media=other)
    a, b = scorer.logprobs([samples[0], exchanged])
    assert np.abs(a - b).max() > 1e-4


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_gradient_is_independent_of_the_split_and_reaches_the_vision_tower(
    family: str, samples: list[Sample]
) -> None:
    results = []
    for budget, order in ((4096, 1), (60, -1)):
        model = model_of(family)
        scorer = LocalScorer(model, micro_batch_tokens=budget)
        given = samples[::order]
        accumulate_gradient(scorer, given, SupervisedObjective(), {}, totals=total_counts(given))
        results.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    whole, split = results
    assert whole.keys() == split.keys()
    assert any("visual" in name and gradient.abs().max() > 1e-6 for name, gradient in whole.items())
    scale = max(float(gradient.abs().max()) for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, split[name], rtol=0, atol=1e-5 * scale)


def test_pictures_are_learned_from_demonstrations(processor: Any) -> None:
    """The answer is in the picture alone: the question is the same."""
    shown = [sample(processor, answer, (16, 16)) for answer in ANSWERS]
    learner = LocalLearner(model_of("qwen2.5-vl"), optimizer=OptimizerSettings(learning_rate=2e-2))
    losses = [supervised_step(learner, shown).metrics["actor/nll"] for _ in range(25)]
    # Without the pictures a third of the answers could be right: ln(3) / 2 a token.
    assert losses[-1] < 0.1


def test_a_policy_step_and_a_distillation_step_run_on_pictures(samples: list[Sample]) -> None:
    learner = LocalLearner(
        model_of("qwen2.5-vl"), optimizer=OptimizerSettings(learning_rate=1e-3), micro_batch_tokens=60
    )
    rng = np.random.default_rng(0)
    reference = LocalScorer(model_of("qwen2.5-vl"))
    algorithm = make_algorithm("grpo", kl={"placement": "loss", "estimator": "k3", "coef": 0.01})
    done = policy_step(learner, samples, algorithm, mini_batches=2, epochs=1, rng=rng, reference=reference)
    assert done.skipped == ()
    assert done.metrics["actor/grad_norm"] > 0
    teacher = DistillationTeacher(LocalScorer(model_of("qwen2.5-vl", seed=5)))
    losses = [
        distillation_step(learner, samples, Distillation(weight=1.0), [teacher]).metrics["actor/kd_loss"]
        for _ in range(8)
    ]
    assert losses[-1] < losses[0]


def test_what_cannot_be_is_named(make_model: Make, samples: list[Sample]) -> None:
    with pytest.raises(LearnerError, match=r"image_grid_thw.*which Qwen3Model does not take"):
        LocalScorer(make_model()).logprobs(samples[:1])
    with pytest.raises(LearnerError, match="a sample has media, whose positions"):
        LocalScorer(model_of("qwen2.5-vl"), compute=ComputeSettings(packing=True)).logprobs(samples[:1])
    media = samples[0].media
    assert media is not None
    with pytest.raises(LearnerError, match=r"Sample\.media\.token_kinds is int8\[3\]"):
        dataclasses.replace(samples[0], media=dataclasses.replace(media, token_kinds=media.token_kinds[:3]))
    with pytest.raises(LearnerError, match=r"Media\.inputs is empty"):
        Media(inputs={}, token_kinds=media.token_kinds)
    wider = Media(
        inputs={"pixel_values": np.zeros((16, 7), np.float32), "image_grid_thw": np.array([[1, 4, 4]])},
        token_kinds=samples[2].media.token_kinds if samples[2].media is not None else media.token_kinds,
    )
    with pytest.raises(LearnerError, match=r"media 'pixel_values' of different samples has items of shapes"):
        LocalScorer(model_of("qwen2.5-vl")).logprobs(
            [samples[0], dataclasses.replace(samples[2], media=wider)]
        )
