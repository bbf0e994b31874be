"""Tiny random models, a plain scorer, and requests, for the tests of roll_rollout."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from roll_rollout import AdapterConfig, GenerateRequest, SamplingParams, WeightBucket, pack_buckets
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


def make_adapter(
    config: AdapterConfig, seed: int, **shape: int
) -> tuple[tuple[WeightBucket, ...], PreTrainedModel]:
    """Random LoRA weights under PEFT's names, and the tiny model of seed 0 with them merged in."""
    torch.manual_seed(1000 + seed)
    merged, tensors = make_tiny_model(0, **shape), []
    scale = config.alpha / (config.rank**0.5 if config.rank_stabilised else config.rank)
    for name, module in merged.named_modules():
        if name.rsplit(".", 1)[-1] not in config.target_modules:
            continue
        first = torch.randn(config.rank, module.in_features) * 0.2
        second = torch.randn(module.out_features, config.rank) * 0.2
        with torch.no_grad():
            module.weight += scale * second @ first
        for part, tensor in (("lora_A", first), ("lora_B", second)):
            payload = tensor.contiguous().view(-1).view(torch.uint8).numpy()
            tensors.append(
                (f"base_model.model.{name}.{part}.weight", "float32", tuple(tensor.shape), payload)
            )
    return tuple(pack_buckets(tensors, max_bytes=2_000)), merged


class Reply:
    """What a `FakeServer`'s handler answers one request with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def client_left(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def json(self, content: object, *, status: int = 200, **headers: str) -> None:
        body = json.dumps(content).encode()
        await self._head(
            status, {"content-type": "application/json", "content-length": str(len(body))} | headers
        )
        await self._write(body)

    async def start_events(self) -> None:
        await self._head(200, {"content-type": "text/event-stream"})

    async def event(self, content: object) -> None:
        data = content if isinstance(content, str) else json.dumps(content)
        await self._write(f"data: {data}\n\n".encode())

    async def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} status", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self._write("\r\n".join([*lines, "", ""]).encode())

    async def _write(self, data: bytes) -> None:
        if not self.client_left:
            self._writer.write(data)
            await self._writer.drain()


class FakeServer:
    """An HTTP server on this machine that calls `handler(path, body, reply)` for every request."""

    def __init__(self, handler: Callable[[str, dict[str, Any], Reply], Awaitable[None]]) -> None:
        self.handler = handler
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.address = ""

    async def __aenter__(self) -> "FakeServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for each, body in self.requests if each == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            path, content = head[0].split()[1], json.loads(body or b"{}")
            self.requests.append((path, content))
            self.headers.append(headers)
            await self.handler(path, content, Reply(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
def fake_server() -> type[FakeServer]:
    return FakeServer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_model() -> PreTrainedModel:
    return make_tiny_model()


@pytest.fixture(scope="session")
def model_maker() -> Callable[..., PreTrainedModel]:
    return make_tiny_model


@pytest.fixture(scope="session")
def score() -> Callable[[PreTrainedModel, np.ndarray, np.ndarray, float], np.ndarray]:
    return plain_logprobs


@pytest.fixture(scope="session")
def buckets_of() -> Callable[[PreTrainedModel], tuple[WeightBucket, ...]]:
    return export_buckets


@pytest.fixture(scope="session")
def adapter_maker() -> Callable[..., tuple[tuple[WeightBucket, ...], PreTrainedModel]]:
    return make_adapter


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
