"""Prompts computed together have the state they would have alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from roll_rollout.transformers_engine.prefill import _passes, prefill
from roll_rollout.transformers_engine.prompts import PromptCache, PromptState
from transformers import DynamicCache


def prompts_of(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 32, length).astype(np.int32) for length in lengths]


@torch.inference_mode()
def test_padded_pass_gives_each_prompt_its_own_state(tiny_model):
    prompts = prompts_of(9, 3, 14, 1, 9)
    states = dict(prefill(tiny_model, prompts, pad=True))
    assert sorted(states) == [0, 1, 2, 3, 4]
    for index, prompt in enumerate(prompts):
        cache = DynamicCache()
        output = tiny_model(torch.from_numpy(prompt).long()[None], past_key_values=cache)
        layers = list(cache)
        assert states[index].length == len(prompt)
        torch.testing.assert_close(states[index].keys, torch.cat([layer[0] for layer in layers]))
        torch.testing.assert_close(states[index].values, torch.cat([layer[1] for layer in layers]))
        torch.testing.assert_close(states[index].logits, output.logits[0, -1])


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40), pad=st.booleans())
def test_passes_cover_every_prompt_once_with_little_padding(lengths, pad):
    passes = _passes(lengths, pad=pad)
    assert sorted(index for each in passes for index in each) == list(range(len(lengths)))
    for each in passes:
        real = [lengths[index] for index in each]
        padded = max(real) * len(real)
        assert len(each) == 1 or padded <= max(512, 1.25 * sum(real))
        assert len(each) == 1 or padded <= 4096
        assert pad or len(set(real)) == 1


def test_short_prompts_share_one_pass():
    assert _passes([4, 9, 12, 4], pad=True) == [[0, 3, 1, 2]]


@pytest.fixture
def state() -> PromptState:
    return PromptState(keys=torch.zeros(1, 1, 2, 1), values=torch.zeros(1, 1, 2, 1), logits=torch.zeros(3))


def test_prompt_is_kept_until_its_last_request_ends(state):
    cache = PromptCache()
    first, second = ((None, prompt.tobytes()) for prompt in prompts_of(4, 5))
    for prompt in (first, first, second):
        cache.acquire(prompt)
    cache.put(first, state)
    cache.release(second)
    cache.release((None, prompts_of(4)[0].tobytes()))
    assert cache.get(first) is state
    cache.release(first)
    assert cache.get(first) is None


def test_dropped_states_do_not_end_the_use_of_a_prompt(state):
    cache, prompt = PromptCache(), (None, prompts_of(4)[0].tobytes())
    cache.acquire(prompt)
    cache.put(prompt, state)
    cache.drop_states()
    assert cache.get(prompt) is None
    cache.put(prompt, state)
    assert cache.get(prompt) is state
    cache.release(prompt)
    assert cache.get(prompt) is None
