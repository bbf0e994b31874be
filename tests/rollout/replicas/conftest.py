"""Scripted engines that die, hang or lie when told to, and what completions of them must be."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest
from roll_rollout import (
    Completion,
    EngineUnavailable,
    GenerateRequest,
    SamplingParams,
    ScriptedEngine,
    TensorSpec,
    WeightReceipt,
    WeightUpdate,
    pack_buckets,
)

SPECS = [TensorSpec(names=("a",), dtype="float32", shape=(4,))]


def digits(request: GenerateRequest) -> Iterator[int]:
    """Endless digits that depend on prompt and seed alone."""
    rng = np.random.default_rng([request.seed, *request.prompt_ids.tolist()])
    while True:
        yield int(rng.integers(10))


class FaultyEngine(ScriptedEngine):
    """Dies (`die`), stops to answer (`hang`), or acknowledges other bytes (`lies`)."""

    def __init__(self, log: list[str] | None = None, name: str = "", **options) -> None:
        super().__init__(digits, specs=SPECS, **options)
        self.name = name
        self.dead = False
        self.hangs = False
        self.lies = False
        self.closed = False
        self.updating = 0
        self.served: list[str] = []
        self.received: list[int] = []
        self.step = asyncio.Event()
        self.step.set()
        self._log = [] if log is None else log

    @property
    def version(self) -> int:
        return self._version

    async def die(self) -> None:
        self.dead = True
        for play in list(self._playing.values()):
            play.halted.set()
        await asyncio.sleep(0)

    async def generate(self, request: GenerateRequest) -> Completion:
        await self._alive()
        self.served.append(request.id)
        completion = await super().generate(request)
        await self._alive()
        return completion

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._alive()
        await super().abort(request_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        await self._alive()
        self.updating += 1
        try:
            self._log.append(f"{self.name} begins {update.version}")
            await self.step.wait()
            await asyncio.sleep(0)
            await self._alive()
            receipt = await super().update_weights(update)
            self._log.append(f"{self.name} has {update.version}")
        finally:
            self.updating -= 1
        self.received.append(update.version)
        return WeightReceipt(version=receipt.version, checksum="other") if self.lies else receipt

    async def load(self):
        await self._alive()
        return await super().load()

    async def check_health(self) -> None:
        await self._alive()
        await super().check_health()

    async def close(self) -> None:
        self.closed = True
        if not self.dead:
            await super().close()

    async def _alive(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.dead:
            raise EngineUnavailable(f"{self.name}: the process is gone")


def make_update(version: int, shape: tuple[int, ...] = (4,)) -> WeightUpdate:
    payload = np.full(shape, version, np.float32).reshape(-1).view(np.uint8)
    return WeightUpdate(
        version=version, buckets=tuple(pack_buckets([("a", "float32", shape, payload)], max_bytes=64))
    )


def request_of(name: str, *, seed: int = 0, prompt: Sequence[int] = (1, 2), max_tokens: int = 8):
    return GenerateRequest(
        id=name, prompt_ids=np.array(prompt), seed=seed, sampling=SamplingParams(max_tokens=max_tokens)
    )


def tokens_of(request: GenerateRequest, count: int | None = None) -> list[int]:
    return list(islice(digits(request), request.sampling.max_tokens if count is None else count))


@pytest.fixture
def faulty() -> type[FaultyEngine]:
    return FaultyEngine


@pytest.fixture
def update_of():
    return make_update


@pytest.fixture
def ask():
    return request_of


@pytest.fixture
def script():
    return tokens_of
