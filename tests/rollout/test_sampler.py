"""The sampler draws from the tempered, filtered distribution of each row and reports its log-prob."""

import numpy as np
import pytest
import torch
from roll_rollout import SamplingParams
from roll_rollout.transformers_engine.sampler import plan_sampling, sample
from roll_rollout.transformers_engine.uniforms import UniformStreams
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

CPU = torch.device("cpu")


def params(**changed) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 1} | changed))


def draw(logits: torch.Tensor, uniforms: np.ndarray, rows: list[SamplingParams]):
    return sample(logits, uniforms, plan_sampling(rows, device=CPU))


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def warped(logits: torch.Tensor, row: SamplingParams) -> torch.Tensor:
    """Log-probs of the distribution as transformers' own logits processors make it."""
    scores = TemperatureLogitsWarper(row.temperature or 1.0)(None, logits)
    if row.top_k:
        scores = TopKLogitsWarper(row.top_k)(None, scores)
    if row.top_p < 1.0:
        scores = TopPLogitsWarper(row.top_p)(None, scores)
    if row.min_p > 0.0:
        scores = MinPLogitsWarper(row.min_p)(None, scores)
    return torch.log_softmax(scores, dim=-1)


ROWS = [
    params(),
    params(temperature=0.5),
    params(temperature=2.0),
    params(top_k=1),
    params(top_k=5),
    params(top_k=1000),
    params(top_p=0.3),
    params(top_p=0.9, temperature=1.3),
    params(min_p=0.2),
    params(top_k=10, top_p=0.7, min_p=0.05, temperature=0.8),
    params(top_k=10, top_p=0.99, min_p=0.4),
    params(top_p=1e-9),
]


LARGE_ROWS = [
    params(),
    params(temperature=0.4),
    params(top_k=30),
    params(top_k=1500),
    params(top_k=1200, top_p=0.99),
    params(top_p=0.5),
    params(top_p=0.999, temperature=3.0),
    params(min_p=1e-3),
    params(top_p=0.9, min_p=1e-2),
]


@pytest.mark.parametrize(
    ("row", "vocabulary"),
    [(row, 40) for row in ROWS] + [(row, size) for row in LARGE_ROWS for size in (1024, 3001)],
    ids=str,
)
def test_frequencies_over_evenly_spread_uniforms_are_the_probabilities(row, vocabulary):
    logits, count = random_logits(1, vocabulary), 4_000
    uniforms = (np.arange(count) + 0.5) / count
    tokens, _ = draw(logits.expand(count, -1), uniforms, [row] * count)
    frequencies = np.bincount(tokens, minlength=vocabulary) / count
    probabilities = warped(logits, row)[0].exp().numpy()
    np.testing.assert_allclose(frequencies, probabilities, atol=1.01 / count)
    assert set(np.flatnonzero(frequencies)) <= set(np.flatnonzero(probabilities))


@pytest.mark.parametrize(
    ("row", "vocabulary"), [(row, 40) for row in ROWS] + [(row, 3001) for row in LARGE_ROWS], ids=str
)
def test_logprob_is_that_of_the_distribution_drawn_from(row, vocabulary):
    logits = random_logits(64, vocabulary, seed=1)
    tokens, logprobs = draw(logits, np.random.default_rng(0).random(64), [row] * 64)
    expected = warped(logits.double(), row).gather(1, torch.from_numpy(tokens)[:, None])[:, 0]
    np.testing.assert_allclose(logprobs, expected.numpy(), atol=2e-6)
    assert logprobs.dtype == np.float32


def test_rows_with_different_parameters_are_drawn_as_if_alone():
    rows = [*ROWS, params(temperature=0.0), params(temperature=0.0, top_k=3)] * 3
    logits = random_logits(len(rows), 50, seed=2)
    uniforms = np.random.default_rng(1).random(len(rows))
    tokens, logprobs = draw(logits, uniforms, rows)
    for index, row in enumerate(rows):
        alone = draw(logits[index : index + 1], uniforms[index : index + 1], [row])
        assert (tokens[index], logprobs[index]) == (alone[0][0], alone[1][0])


def test_greedy_takes_the_most_likely_token_with_its_logprob_at_temperature_one():
    logits = random_logits(8, 30, seed=3)
    tokens, logprobs = draw(logits, np.full(8, 0.999), [params(temperature=0.0)] * 8)
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()
    np.testing.assert_allclose(logprobs, torch.log_softmax(logits, -1).max(dim=-1).values.numpy(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocabulary", [9, 2000])
def test_largest_and_smallest_uniform_never_draw_an_impossible_token(dtype, vocabulary):
    logits = torch.full((2, vocabulary), float("-inf"), dtype=dtype)
    possible = [3, 4, vocabulary // 2, vocabulary - 4]
    logits[:, possible] = torch.tensor([0.1, 2.0, 0.3, 0.7], dtype=dtype)
    tokens, logprobs = draw(logits, np.array([0.0, 1.0 - 2.0**-53]), [params()] * 2)
    assert tokens.tolist() == [possible[0], possible[-1]]
    assert np.isfinite(logprobs).all()


@pytest.mark.parametrize("vocabulary", [40, 3000])
def test_every_drawn_token_has_weight_even_where_most_have_none(vocabulary):
    logits = torch.where(random_logits(2000, vocabulary, seed=5) > 6.0, 0.0, float("-inf"))
    logits[:, 7] = -80.0
    _, logprobs = draw(logits, np.random.default_rng(2).random(2000), [params()] * 2000)
    assert np.isfinite(logprobs).all()


def test_logits_that_are_not_finite_show_in_the_logprob_of_their_row_only():
    logits = random_logits(3, 10, seed=4)
    logits[1, 2] = float("nan")
    _, logprobs = draw(logits, np.full(3, 0.5), [params()] * 3)
    assert np.isfinite(logprobs).tolist() == [True, False, True]


def test_streams_depend_on_seed_alone_and_survive_moves_and_block_ends():
    streams = UniformStreams(4)
    seeds = {0: 7, 1: 2**63, 2: 7}
    for row, seed in seeds.items():
        streams.open(row, seed)
    drawn = [[], [], []]
    for index in range(300):
        if index == 150:
            streams.move(0, 3)
        rows = slice(1, 4) if index >= 150 else slice(0, 3)
        numbers = streams.draw(rows, np.full(3, index)).tolist()
        order = [1, 2, 0] if index >= 150 else [0, 1, 2]
        for place, number in zip(order, numbers, strict=True):
            drawn[place].append(number)
    for row, seed in seeds.items():
        plain = np.random.Generator(np.random.Philox(key=seed)).random(300)
        assert drawn[row] == plain.tolist()


def test_streams_of_rows_at_different_places_are_independent():
    streams = UniformStreams(2)
    streams.open(0, 1)
    first = [streams.draw(slice(0, 1), np.array([index]))[0] for index in range(100)]
    streams.open(1, 1)
    second = [streams.draw(slice(0, 2), np.array([100 + index, index]))[1] for index in range(100)]
    assert first == second
