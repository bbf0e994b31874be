"""A tiny random sequence-classification model, loaded from a directory as any other."""

import asyncio
from pathlib import Path

import pytest
from roll_rewards import RewardError, make_grader
from roll_rewards.graders.reward_model import conversation
from roll_rewards.reward_models.batching import BatchQueue
from roll_rewards.reward_models.sequence import SequenceScorer

TEXTS = ["a", "b c", "a b c a b c a b c", "c", ""]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification

    path = tmp_path_factory.mktemp("rm")
    words = {word: place for place, word in enumerate(["<pad>", "<end>", "<unk>", "a", "b", "c", "?"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    )
    fast.save_pretrained(path)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_labels=1,
        pad_token_id=0,
        eos_token_id=1,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(path)
    return path


@pytest.mark.timeout(180)
async def test_scores_do_not_depend_on_the_batch(model: Path) -> None:
    scorer = SequenceScorer(model, device="cpu", dtype="float32", max_tokens=64)
    alone = [scorer.scores([conversation("?", text)])[0] for text in TEXTS]
    grader = make_grader("reward_model", model=str(model), batch_size=4, wait_s=0.05)
    scores = await asyncio.gather(*(grader.grade(text, None, prompt="?") for text in TEXTS))
    assert [score.value for score in scores] == pytest.approx(alone, abs=1e-5)
    assert len(set(alone)) == len(TEXTS)


@pytest.mark.timeout(180)
async def test_sigmoid_keeps_the_order_and_the_logit(model: Path) -> None:
    grader = make_grader("reward_model", model=str(model), scale="sigmoid")
    scores = [await grader.grade(text, None) for text in TEXTS]
    assert all(0 < score.value < 1 for score in scores)
    assert sorted(scores, key=lambda s: s.value) == sorted(scores, key=lambda s: s.parts["logit"])


async def test_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"a directory with config.json"):
        await make_grader("reward_model", model=str(tmp_path)).grade("a", None)


async def test_queue_fills_batches_and_gives_errors_to_their_batch_alone() -> None:
    batches: list[list[int]] = []

    def run(items: object) -> list[int]:
        batch = list(items)  # type: ignore[call-overload]  # a sequence of numbers
        batches.append(batch)
        if 3 in batch:
            raise ValueError("three")
        return [2 * item for item in batch]

    queue: BatchQueue[int, int] = BatchQueue(run, batch_size=2, wait_s=0.02, name="doubling")
    results = await asyncio.gather(*(queue.submit(n) for n in range(6)), return_exceptions=True)
    assert batches == [[0, 1], [2, 3], [4, 5]]
    assert [r if isinstance(r, int) else str(r) for r in results] == [0, 2, "three", "three", 8, 10]
    assert await queue.submit(7) == 14
