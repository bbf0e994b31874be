"""Sampled ids reach training untouched, where a detour through text would have changed them."""

import asyncio

import numpy as np
import pytest
from roll_rollout import RecordingEngine, ReplayEngine, retokenization_drift
from roll_rollout.transformers_engine import TransformersEngine
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PIECES = ["h", "e", "l", "o", "he", "ll", "llo", "hello", " ", "!", "a", "b", "ab", "aba", "ba", "bab"]


@pytest.fixture(scope="module")
def merging_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE tokenizer whose vocabulary of 16 has several ways to spell most texts."""
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("ll", "o"),
        ("he", "llo"),
        ("a", "b"),
        ("ab", "a"),
        ("b", "a"),
        ("ba", "b"),
    ]
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\0", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


async def test_ids_pass_every_path_of_the_engine_though_text_would_have_changed_them(
    model_maker, merging_tokenizer, make_request, tmp_path
):
    def decode(ids) -> str:
        return merging_tokenizer.decode(np.asarray(ids).tolist())

    def drift(completion):
        return retokenization_drift(completion.token_ids, decode=decode, encode=merging_tokenizer.encode)

    engine = TransformersEngine(model_maker(vocab_size=16), tokenizer=merging_tokenizer)
    recorder = RecordingEngine(engine, tmp_path / "rollouts.jsonl")
    # A stop string that never comes sends every token through the decoder.
    requests = [make_request([3, 1], seed=seed, max_tokens=24, stop=("zzz",)) for seed in range(32)]
    completions = await asyncio.gather(*[recorder.generate(request) for request in requests])
    drifted = [completion for completion in completions if drift(completion) is not None]
    assert len(drifted) > 20
    replay = ReplayEngine(tmp_path / "rollouts.jsonl")
    for request, completion in zip(requests, completions, strict=True):
        sampled = completion.token_ids.tolist()
        streamed = [chunk.token_ids async for chunk in engine.stream(request)]
        assert np.concatenate(streamed).tolist() == sampled
        assert (await replay.generate(request)).token_ids.tolist() == sampled
        place = drift(completion)
        if place is not None:
            assert sampled == sampled[: place.index] + list(place.sampled)
            assert place.encoded != place.sampled
            assert decode(place.encoded) == decode(place.sampled) == place.text
    await recorder.close()


def test_first_place_where_ids_differ_is_found():
    texts = {1: "he", 2: "llo", 3: "hello", 4: "!"}

    def decode(ids):
        return "".join(texts[each] for each in np.asarray(ids).tolist())

    drift = retokenization_drift([4, 1, 2], decode=decode, encode=lambda text: [4, 3])
    assert (drift.index, drift.sampled, drift.encoded, drift.text) == (1, (1, 2), (3,), "hello")
    assert retokenization_drift([4, 3], decode=decode, encode=lambda text: [4, 3]) is None
    longer = retokenization_drift([4], decode=decode, encode=lambda text: [4, 3])
    assert (longer.index, longer.sampled, longer.encoded) == (1, (), (3,))
