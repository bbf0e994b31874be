"""The transformers engine: exact log-probs, shared prompts, reproducible batches, per-request sampling."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_rollout import Completion, EngineError, GenerateRequest, PromptTooLong, SamplingError
from roll_rollout.transformers_engine import TransformersEngine
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)


async def complete(engine: TransformersEngine, requests: list[GenerateRequest]) -> list[Completion]:
    return list(await asyncio.gather(*[engine.generate(request) for request in requests]))


def mixed_requests(make_request, count: int = 18, **sampling) -> list[GenerateRequest]:
    """Groups of three with prompts of 1 to 40 tokens and limits of 1 to 60."""
    rng = np.random.default_rng(3)
    requests = []
    while len(requests) < count:
        prompt = rng.integers(0, 32, rng.integers(1, 40))
        for seed in range(3):
            limit = int(rng.integers(1, 60))
            requests.append(make_request(prompt, seed=seed, max_tokens=limit, **sampling))
    return requests


def assert_same(first: list[Completion], second: list[Completion]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logprobs.tolist() == other.logprobs.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_those_of_a_plain_forward_pass(temperature, tiny_model, score, make_request):
    engine = TransformersEngine(tiny_model, max_batch=7)
    requests = mixed_requests(make_request, temperature=temperature)
    for completion in await complete(engine, requests):
        expected = score(tiny_model, completion.prompt_ids, completion.token_ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, rtol=0)
    await engine.close()


SHAPE = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROPE = SHAPE | {"intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.15}
GROUPED = ROPE | {"num_key_value_heads": 2}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**ROPE),
        MistralConfig(**GROUPED, sliding_window=8),
        Qwen3Config(
            **GROUPED,
            head_dim=8,
            sliding_window=6,
            use_sliding_window=True,
            layer_types=["sliding_attention", "full_attention"],
        ),
        Gemma2Config(**GROUPED, head_dim=8, sliding_window=6, attn_implementation="sdpa"),
        Qwen3MoeConfig(**GROUPED, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
        GPTNeoXConfig(**ROPE),
        GPT2Config(vocab_size=32, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.15),
        LlamaConfig(**GROUPED, attn_implementation="eager"),
    ],
    ids=lambda config: f"{config.model_type}-{config._attn_implementation}",
)
async def test_models_of_other_families_are_exact_too(config, score, make_request):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    engine = TransformersEngine(model, max_batch=7)
    for completion in await complete(engine, mixed_requests(make_request)):
        expected = score(model, completion.prompt_ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5, rtol=0)
    await engine.close()


async def test_bfloat16_agrees_to_its_precision(model_maker, score, make_request):
    model = model_maker(dtype=torch.bfloat16)
    engine = TransformersEngine(model)
    for completion in await complete(engine, mixed_requests(make_request)):
        expected = score(model, completion.prompt_ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=0.2, rtol=0)
        assert np.abs(completion.logprobs - expected).mean() < 0.03
    await engine.close()


async def test_group_is_prefilled_once(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    await complete(engine, [make_request([4, 5, 6, 7], seed=seed) for seed in range(8)])
    stats = engine.stats()
    assert (stats.prefill_calls, stats.prefill_tokens, stats.reused_prompt_tokens) == (1, 4, 28)
    assert (stats.decode_steps, stats.decode_tokens, stats.sampled_tokens) == (7, 56, 64)


async def test_members_that_wait_or_come_later_reuse_the_prompt(tiny_model, make_request):
    engine = TransformersEngine(tiny_model, max_batch=2)
    first = asyncio.gather(
        *[engine.generate(make_request([4, 5, 6], seed=seed, max_tokens=30)) for seed in range(5)]
    )
    while engine.stats().decode_steps < 3:
        await asyncio.sleep(0)
    await engine.generate(make_request([4, 5, 6], seed=9))
    await first
    assert engine.stats().prefill_tokens == 3
    await engine.generate(make_request([4, 5, 6], seed=9))
    assert engine.stats().prefill_tokens == 6


async def test_same_requests_give_the_same_bits_run_after_run(model_maker, make_request):
    requests = mixed_requests(make_request, count=30)
    engine = TransformersEngine(model_maker(), max_batch=8)
    first = await complete(engine, requests)
    await engine.generate(make_request(max_tokens=100))
    assert_same(first, await complete(engine, requests))
    await engine.close()
    fresh = TransformersEngine(model_maker(), max_batch=8)
    assert_same(first, await complete(fresh, requests))
    await fresh.close()


async def test_tokens_depend_on_seed_and_not_on_the_crowd(model_maker, make_request):
    engine = TransformersEngine(model_maker(dtype=torch.float64), max_batch=16)
    requests = mixed_requests(make_request, count=30)
    crowd = await complete(engine, requests)
    for request, together in list(zip(requests, crowd, strict=True))[::4]:
        alone = await engine.generate(request)
        assert alone.token_ids.tolist() == together.token_ids.tolist()
        np.testing.assert_allclose(alone.logprobs, together.logprobs, atol=1e-6)
    await engine.close()


async def test_finished_rows_leave_the_batch_at_once(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    await complete(
        engine, [make_request(seed=seed, max_tokens=limit) for seed, limit in enumerate((2, 5, 20))]
    )
    stats = engine.stats()
    assert (stats.decode_steps, stats.decode_tokens) == (19, 1 + 4 + 19)


async def test_waiting_requests_fill_free_rows_in_order_of_submission(tiny_model, make_request):
    engine = TransformersEngine(tiny_model, max_batch=2)
    ended: list[str] = []

    async def note(request: GenerateRequest) -> None:
        await engine.generate(request)
        ended.append(request.id)

    limits = {"a": 4, "b": 10, "c": 3, "d": 20, "e": 2}
    await asyncio.gather(*[note(make_request(id=name, max_tokens=limit)) for name, limit in limits.items()])
    # a and b run; c takes a's row after step 4, d c's after 7, e b's after 10.
    assert ended == ["a", "c", "b", "e", "d"]
    assert engine.stats().decode_tokens == sum(limits.values()) - len(limits)


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.3},
        {"top_k": 6, "top_p": 0.8, "temperature": 1.5},
    ],
    ids=str,
)
async def test_first_tokens_of_many_seeds_follow_the_distribution(sampling, tiny_model, score, make_request):
    engine, count = TransformersEngine(tiny_model, max_batch=500), 1500
    requests = [make_request([3, 1, 4], seed=seed, max_tokens=1, **sampling) for seed in range(count)]
    completions = await complete(engine, requests)
    tokens = np.array([completion.token_ids[0] for completion in completions])
    reported = {int(c.token_ids[0]): float(np.exp(c.logprobs[0])) for c in completions}
    # Tokens that were never drawn are too rare to matter, so what was reported must be all there is.
    assert sum(reported.values()) == pytest.approx(1.0, abs=0.02)
    for token, probability in reported.items():
        spread = 4.5 * np.sqrt(probability * (1 - probability) / count)
        assert abs((tokens == token).mean() - probability) <= spread + 1e-9
    full = np.exp(score(tiny_model, completions[0].prompt_ids, tokens[:1], 1.0))[0]
    assert np.isclose(reported[int(tokens[0])], full, rtol=1e-4) == (not sampling)


async def test_parameters_are_honoured_per_request_in_one_batch(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    greedy, cold, limited = await complete(
        engine,
        [
            make_request(seed=1, temperature=0.0, max_tokens=12),
            make_request(seed=2, temperature=1e-3, max_tokens=12),
            make_request(seed=3, top_k=1, max_tokens=5),
        ],
    )
    assert greedy.token_ids.tolist() == cold.token_ids.tolist()
    assert limited.token_ids.tolist() == greedy.token_ids.tolist()[:5]
    assert limited.logprobs.tolist() == [0.0] * 5
    assert (greedy.logprobs < 0).all()


async def test_stop_ids_end_their_own_request_only(tiny_model, make_request):
    engine = TransformersEngine(tiny_model)
    (free,) = await complete(engine, [make_request(seed=4, max_tokens=20)])
    end = int(free.token_ids[6])
    first = free.token_ids.tolist().index(end)
    stopped, unstopped = await complete(
        engine,
        [
            make_request(seed=4, max_tokens=20, stop_token_ids=(99, end)),
            make_request(seed=4, max_tokens=20),
        ],
    )
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: first + 1]
    assert stopped.finish_reason == "stop"
    assert unstopped.token_ids.tolist() == free.token_ids.tolist()


async def test_stop_strings_cut_tokens_logprobs_and_versions(tiny_model, letter_tokenizer, make_request):
    engine = TransformersEngine(tiny_model, tokenizer=letter_tokenizer)
    (free,) = await complete(engine, [make_request(seed=4, max_tokens=20)])
    text = letter_tokenizer.decode(free.token_ids.tolist())
    stop = text[7:10]
    kept = text.index(stop)
    stopped, other = await complete(
        engine, [make_request(seed=4, max_tokens=20, stop=("??", stop)), make_request(seed=5, max_tokens=20)]
    )
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[:kept]
    assert stopped.logprobs.tolist() == pytest.approx(free.logprobs.tolist()[:kept], abs=1e-5)
    assert (stopped.versions, stopped.finish_reason) == (((0, kept),), "stop")
    assert len(other) == 20


async def test_stop_string_that_the_last_allowed_token_completes_still_cuts(
    tiny_model, letter_tokenizer, make_request
):
    engine = TransformersEngine(tiny_model, tokenizer=letter_tokenizer)
    (free,) = await complete(engine, [make_request(seed=4, max_tokens=20)])
    stop = letter_tokenizer.decode(free.token_ids.tolist())[:3]
    (stopped,) = await complete(engine, [make_request(seed=4, max_tokens=3, stop=(stop,))])
    assert (len(stopped), stopped.finish_reason, stopped.versions) == (0, "stop", ((0, 0),))


async def test_completion_ends_where_the_context_does(tiny_model, make_request):
    engine = TransformersEngine(tiny_model, max_context=20)
    completion = await engine.generate(make_request(range(15), max_tokens=50))
    assert (len(completion), completion.finish_reason) == (5, "length")


async def test_wrong_requests_are_refused_and_leave_others_unharmed(tiny_model, make_request):
    engine = TransformersEngine(tiny_model, max_context=20)
    good = asyncio.create_task(engine.generate(make_request(id="good", max_tokens=15)))
    await asyncio.sleep(0)
    with pytest.raises(PromptTooLong, match="has 20 tokens, allowed is 19 in a context of 20"):
        await engine.generate(make_request([1] * 20))
    with pytest.raises(EngineError, match="prompt id 32 is outside the vocabulary of 32"):
        await engine.generate(make_request([1, 32]))
    with pytest.raises(EngineError, match="'good': its id is in flight"):
        await engine.generate(make_request(id="good"))
    with pytest.raises(SamplingError, match="need an engine with a tokenizer"):
        await engine.generate(make_request(stop=("x",)))
    assert len(await good) == 15


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(
        st.tuples(
            st.integers(0, 3),  # prompt
            st.integers(1, 25),  # most tokens
            st.sampled_from(["none", "early", "late"]),  # abort
            st.integers(0, 3),  # turns of the event loop before the next arrival
        ),
        min_size=1,
        max_size=14,
    ),
    max_batch=st.integers(1, 5),
)
def test_whatever_arrives_or_is_aborted_every_request_ends_once(
    plan, max_batch, tiny_model, score, make_request
):

    async def run() -> None:
        engine = TransformersEngine(tiny_model, max_batch=max_batch)
        requests, tasks = [], []
        for prompt, limit, abort, turns in plan:
            request = make_request([prompt + 1] * (2 * prompt + 1), seed=len(tasks), max_tokens=limit)
            requests.append(request)
            tasks.append(asyncio.create_task(engine.generate(request)))
            if abort == "early":
                await asyncio.sleep(0)
                await engine.abort([request.id])
            for _ in range(turns):
                await asyncio.sleep(0)
        await engine.abort([r.id for r, each in zip(requests, plan, strict=True) if each[2] == "late"])
        for request, completion, each in zip(requests, await asyncio.gather(*tasks), plan, strict=True):
            assert completion.request_id == request.id
            whole = len(completion) == request.sampling.max_tokens
            assert completion.finish_reason == "length" if whole else each[2] != "none"
            assert sum(length for _, length in completion.versions) == len(completion)
            expected = score(tiny_model, completion.prompt_ids, completion.token_ids, 1.0)
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, rtol=0)
        load = await engine.load()
        assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)
        await engine.close()

    asyncio.run(run())


async def test_model_runs_on_the_given_executor_which_stays_open(tiny_model, make_request):
    threads = set()
    tiny_model.register_forward_pre_hook(lambda *_: threads.add(threading.current_thread().name))
    with ThreadPoolExecutor(1, thread_name_prefix="actor") as executor:
        engine = TransformersEngine(tiny_model, executor=executor)
        await engine.generate(make_request())
        await engine.close()
        assert executor.submit(lambda: 1).result() == 1
    assert threads == {"actor_0"}


async def test_event_loop_stays_free_while_the_model_runs(tiny_model, make_request):
    entered, release = threading.Event(), threading.Event()

    def block(*_: object) -> None:
        entered.set()
        assert release.wait(10)

    hook = tiny_model.register_forward_pre_hook(block)
    engine = TransformersEngine(tiny_model)
    task = asyncio.create_task(engine.generate(make_request(max_tokens=2)))
    while not entered.is_set():
        await asyncio.sleep(0)
    assert (await engine.load()).waiting == 1
    hook.remove()
    release.set()
    assert len(await task) == 2


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=32, hidden_size=32, n_layer=1, n_head=4),
        MambaConfig(vocab_size=32, hidden_size=32, num_hidden_layers=1),
        LlamaConfig(**ROPE, attention_chunk_size=16),
        MistralConfig(**ROPE, sliding_window=8, attn_implementation="eager"),
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_cannot_be_batched_exactly_are_refused_by_name(config):
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(EngineError, match=type(model).__name__):
        TransformersEngine(model)


@pytest.mark.parametrize("limits", [{"max_batch": 0}, {"max_context": 1}, {"max_context": 513}])
def test_limits_out_of_range_are_refused(limits, tiny_model):
    (name,) = limits
    with pytest.raises(EngineError, match=f"{name} is {limits[name]}"):
        TransformersEngine(tiny_model, **limits)


async def test_model_computes_the_same_bits_outside_the_engine_as_before(tiny_model):
    ids = torch.arange(24).reshape(2, 12)
    padded = torch.ones_like(ids)
    padded[0, :5] = 0
    before = tiny_model(ids, attention_mask=padded).logits
    engine = TransformersEngine(tiny_model)
    assert torch.equal(tiny_model(ids, attention_mask=padded).logits, before)
    await engine.close()
    assert torch.equal(tiny_model(ids, attention_mask=padded).logits, before)


async def test_models_that_share_a_configuration_object_run_in_several_engines(tiny_model, make_request):
    twin = type(tiny_model)(tiny_model.config).eval()
    twin.load_state_dict(tiny_model.state_dict())
    first, second = TransformersEngine(tiny_model), TransformersEngine(twin)
    request = make_request(seed=1)
    expected = await first.generate(request)
    await first.close()
    assert_same([await second.generate(request)], [expected])
    await second.close()
    again = TransformersEngine(tiny_model)
    assert_same([await again.generate(request)], [expected])


async def test_directory_is_loaded_with_its_tokenizer(tiny_model, letter_tokenizer, tmp_path, make_request):
    tiny_model.save_pretrained(tmp_path)
    letter_tokenizer.save_pretrained(tmp_path)
    engine = TransformersEngine.from_pretrained(tmp_path, dtype="bfloat16", max_batch=2, version=4)
    completion = await engine.generate(make_request(stop=("zzz",)))
    assert completion.versions == ((4, len(completion)),)
    await engine.close()
    in_memory = TransformersEngine(tiny_model)
    loaded = TransformersEngine.from_pretrained(tmp_path, tokenizer=letter_tokenizer)
    request = make_request(seed=3, max_tokens=20)
    assert_same([await in_memory.generate(request)], [await loaded.generate(request)])
