"""What engines are given besides prompts: partial completions, media, adapters; and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from roll_rollout import (
    AdapterConfig,
    AdapterUpdate,
    Completion,
    EngineCapabilities,
    EngineError,
    Media,
    PromptTooLong,
    SamplingError,
    UnsupportedRequest,
    VersionRuns,
    WeightMismatch,
    capabilities_of,
    pack_buckets,
)
from roll_rollout.refusal import refuse_unknown_tokens, refuse_unsupported
from roll_rollout.transformers_engine.uniforms import UniformStreams

CONFIG = AdapterConfig(rank=2, alpha=4.0, target_modules=("q_proj",))


def partial_of(request, token_ids=(7, 8, 9), **changes) -> Completion:
    count = len(token_ids)
    parts = {
        "request_id": request.id,
        "prompt_ids": request.prompt_ids,
        "token_ids": np.array(token_ids, dtype=np.int32),
        "logprobs": np.full(count, -0.5, dtype=np.float32),
        "versions": ((2, count),),
        "finish_reason": "abort",
        "seed": request.seed,
    }
    return Completion(**(parts | changes))


def test_request_that_goes_on_reads_the_prompt_and_what_was_drawn(make_request):
    request = make_request([4, 5], seed=3)
    resumed = request.resumed(partial_of(request))
    assert resumed.context_ids.tolist() == [4, 5, 7, 8, 9]
    assert resumed.prompt_ids.tolist() == [4, 5]
    assert request.context_ids.tolist() == [4, 5]
    assert replace(resumed, partial=None).context_ids.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt_ids": np.array([4, 6], dtype=np.int32)}, "of another prompt"),
        ({"seed": 4}, "has seed 4, allowed is that of the request, 3"),
        ({"finish_reason": "length"}, "ended with 'length', allowed is 'abort'"),
        ({"exact": False}, "ids that were not sampled"),
    ],
)
def test_partial_completion_of_something_else_is_refused(changes, said, make_request):
    request = make_request([4, 5], seed=3)
    with pytest.raises(EngineError, match=said):
        request.resumed(partial_of(request, **changes))


def test_members_of_a_group_differ_in_id_and_seed_alone(make_request):
    request = make_request([4, 5], id="7", seed=1, temperature=0.5)
    members = request.members([10, 11])
    assert [(each.id, each.seed) for each in members] == [("7#0", 10), ("7#1", 11)]
    assert all(each.sampling is request.sampling for each in members)


@pytest.mark.parametrize("at", [0, 1, 127, 128, 129, 300])
def test_random_numbers_go_on_where_they_stopped(at):
    streams = UniformStreams(2)
    streams.open(0, 5)
    whole = [streams.draw(slice(0, 1), np.array([index]))[0] for index in range(at + 140)]
    streams.open(1, 5, at=at)
    rest = [streams.draw(slice(1, 2), np.array([index]))[0] for index in range(at, at + 140)]
    assert rest == whole[at:]


def test_versions_go_on_after_those_of_a_partial_completion():
    runs = VersionRuns.after(((1, 2), (2, 1)), 5)
    assert runs.runs(6) == ((1, 2), (2, 1), (5, 3))
    assert runs.runs(3) == ((1, 2), (2, 1))
    assert VersionRuns.after(((5, 2),), 5).runs(4) == ((5, 4),)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "smell", "data": np.zeros(3, np.float32)}, "got 'smell'"),
        ({"kind": "image", "data": np.zeros((4, 4), np.uint8)}, r"uint8\[4, 4\], allowed is uint8\[height"),
        ({"kind": "image", "data": np.zeros((4, 4, 4), np.uint8)}, "allowed is uint8"),
        ({"kind": "image", "data": np.zeros((4, 4, 3), np.float32)}, "float32"),
        ({"kind": "video", "data": np.zeros((0, 4, 4, 3), np.uint8)}, "frames"),
        ({"kind": "audio", "data": np.zeros(4, np.float32)}, "samples a second"),
        ({"kind": "image", "data": np.zeros((4, 4, 3), np.uint8), "sampling_rate": 5}, "None for others"),
    ],
)
def test_media_of_another_layout_is_refused(given, said):
    with pytest.raises(EngineError, match=said):
        Media(**given)


def adapter(*names: str) -> AdapterUpdate:
    tensors = [(name, "float32", (1,), np.zeros(4, np.uint8)) for name in names]
    return AdapterUpdate(
        name="a", version=1, config=CONFIG, buckets=tuple(pack_buckets(tensors, max_bytes=100))
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "it has no tensors"),
        (("x.weight",), "'x.weight' is no part of a LoRA adapter"),
        (("x.lora_A.weight",), "'x.lora_A.weight' came without 'x.lora_B.weight'"),
        (("x.lora_B.weight",), "'x.lora_B.weight' came without 'x.lora_A.weight'"),
        (("x.lora_A.weight", "x.lora_A.weight"), "duplicated"),
    ],
)
def test_adapter_whose_tensors_do_not_pair_is_refused(names, said):
    with pytest.raises(WeightMismatch, match=said):
        adapter(*names)


def test_adapter_of_impossible_shape_is_refused():
    with pytest.raises(WeightMismatch, match="rank: got 0"):
        AdapterConfig(rank=0, alpha=1.0, target_modules=("q_proj",))
    with pytest.raises(WeightMismatch, match="target_modules"):
        AdapterConfig(rank=1, alpha=1.0, target_modules=())


def test_engine_that_says_nothing_can_do_the_five_methods_alone():
    assert capabilities_of(object()) == EngineCapabilities()


def test_requests_for_what_an_engine_lacks_are_refused_by_name(make_request):
    plain = EngineCapabilities()

    def refuse(request, capabilities=plain, adapters=(), max_context=None) -> int:
        return refuse_unsupported(request, capabilities, adapters=adapters, max_context=max_context)

    assert refuse(make_request(max_tokens=8)) == 8
    assert refuse(make_request([1] * 5, max_tokens=8), max_context=10) == 5
    with pytest.raises(PromptTooLong, match="has 10 tokens, allowed is 9 in a context of 10"):
        refuse(make_request([1] * 10), max_context=10)
    with pytest.raises(SamplingError, match="stop strings"):
        refuse(make_request(stop=("x",)))
    with pytest.raises(UnsupportedRequest, match="adapter 'a' is unknown, this engine takes none"):
        refuse(replace(make_request(), adapter="a"))
    with pytest.raises(UnsupportedRequest, match=r"adapter 'a' is unknown, loaded are \['b'\]"):
        refuse(replace(make_request(), adapter="a"), EngineCapabilities(adapters=True), ("b",))
    image = Media(kind="image", data=np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(UnsupportedRequest, match=r"'image' for this engine, allowed are \['video'\]"):
        refuse(replace(make_request(), media=(image,)), EngineCapabilities(media=("video",)))
    with pytest.raises(UnsupportedRequest, match="experts"):
        refuse(replace(make_request(), routed_experts=True))
    request = make_request([1, 2], max_tokens=3)
    resumed = request.resumed(partial_of(request))
    with pytest.raises(UnsupportedRequest, match="cannot go on"):
        refuse(resumed)
    exact = EngineCapabilities(continuation="exact")
    with pytest.raises(SamplingError, match="max_tokens is 3, its partial completion has 3 already"):
        refuse(resumed, exact)
    longer = replace(resumed, sampling=replace(resumed.sampling, max_tokens=9))
    assert refuse(longer, exact, max_context=8) == 6
    with pytest.raises(PromptTooLong, match="has 5 tokens, allowed is 4"):
        refuse(longer, exact, max_context=5)
    with pytest.raises(EngineError, match="prompt id 9 is outside the vocabulary of 9"):
        refuse_unknown_tokens(longer, vocabulary=9)
