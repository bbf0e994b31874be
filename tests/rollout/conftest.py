"""Tiny random models, a plain scorer, and requests, for the tests of roll_rollout."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from roll_rollout import GenerateRequest, SamplingParams, WeightBucket, pack_buckets
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 32


def make_tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, **config: object) -> PreTrainedModel:
    """A random Qwen3 whose distributions are far from flat."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**(settings | config)))
    return model.to(dtype).eval()


def plain_logprobs(
    model: PreTrainedModel, prompt_ids: np.ndarray, token_ids: np.ndarray, temperature: float
) -> np.ndarray:
    """Log-probs of tokens after a prompt by one forward pass without cache, padding or batch."""
    ids = torch.from_numpy(np.concatenate([prompt_ids, token_ids]).astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    return logprobs.gather(1, ids[len(prompt_ids) :, None])[:, 0].numpy()


def export_buckets(model: PreTrainedModel, max_bytes: int = 20_000) -> tuple[WeightBucket, ...]:
    """All weights of a model; tied ones once."""
    seen: set[int] = set()
    tensors = []
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        payload = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        tensors.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), payload))
    return tuple(pack_buckets(tensors, max_bytes=max_bytes))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_model() -> PreTrainedModel:
    return make_tiny_model()


@pytest.fixture
def model_maker() -> Callable[..., PreTrainedModel]:
    return make_tiny_model


@pytest.fixture
def score() -> Callable[[PreTrainedModel, np.ndarray, np.ndarray, float], np.ndarray]:
    return plain_logprobs


@pytest.fixture
def buckets_of() -> Callable[[PreTrainedModel], tuple[WeightBucket, ...]]:
    return export_buckets


@pytest.fixture
def make_request() -> Callable[..., GenerateRequest]:
    """`make_request(prompt, seed=..., max_tokens=..., **sampling)` with a fresh id unless one is given."""
    count = 0

    def make(
        prompt: list[int] | np.ndarray = (5, 6, 7),  # type: ignore[assignment] # read only
        *,
        id: str | None = None,
        seed: int = 0,
        max_tokens: int = 8,
        **sampling: object,
    ) -> GenerateRequest:
        nonlocal count
        count += 1
        return GenerateRequest(
            id=id or f"r{count}",
            prompt_ids=np.array(prompt, dtype=np.int32),
            seed=seed,
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        )

    return make


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte: characters outside ASCII take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={each: index for index, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="session")
def letter_tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter: ids 0 to 31 are `a` to `z` and `0` to `5`."""
    letters = "abcdefghijklmnopqrstuvwxyz012345"
    tokenizer = Tokenizer(
        models.WordLevel({each: index for index, each in enumerate(letters)}, unk_token="a")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
