"""What every conformance check works with: the engine, its policies, and the requests in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roll_rollout.adapter import AdapterConfig
from roll_rollout.capabilities import capabilities_of
from roll_rollout.completion import Completion
from roll_rollout.engine import Engine
from roll_rollout.request import GenerateRequest
from roll_rollout.sampling import SamplingParams
from roll_rollout.stop_strings import Decode
from roll_rollout.weights import WeightBucket, WeightReceipt, WeightUpdate, weights_checksum

Score = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""Prompt ids, token ids and temperature to the log-prob of each token, computed in the plainest way."""


ALL_TOKENS = slice(None)


class Violation(Exception):
    """The engine did something that an engine must not do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """Weights for the engine under test, and what they should make of a completion.

    Attributes:
        buckets: The weights.
        score: Their log-probs. A temperature of 0 asks for those at temperature 1.
    """

    buckets: tuple[WeightBucket, ...]
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterPolicy:
    """A LoRA adapter on the first policy, and what it should make of a completion.

    Attributes:
        config: Its shape.
        buckets: Its weights.
        score: Log-probs of the first policy with the adapter.
    """

    config: AdapterConfig
    buckets: tuple[WeightBucket, ...]
    score: Score


class Scored(Protocol):
    """A policy or an adapter: whatever says which log-probs are right."""

    @property
    def score(self) -> Score:
        """Its log-probs."""
        ...


class Bench:
    """An engine under test.

    Args:
        engine: Starts with the first policy.
        policies: Two policies with different weights of the same model.
        prompts: Distinct prompts.
        tolerance: Largest difference of log-probs.
        long_tokens: Length of a completion that takes long enough to be met on its way.
        group_prompt_tokens: Length of the prompt that a group shares.
        decode: Ids to text.
        adapters: Two adapters with different weights on the first policy.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policies: tuple[Policy, Policy],
        prompts: Sequence[np.ndarray],
        tolerance: float,
        long_tokens: int,
        group_prompt_tokens: int,
        decode: Decode | None,
        adapters: tuple[AdapterPolicy, AdapterPolicy] | None,
    ) -> None:
        self.engine = engine
        self.capabilities = capabilities_of(engine)
        self.policies = policies
        self.prompts = list(prompts)
        self.tolerance = tolerance
        self.long_tokens = long_tokens
        self.group_prompt_tokens = group_prompt_tokens
        self.decode = decode
        self.adapters = adapters
        self._next_id = 0
        self._tasks: dict[asyncio.Task[Completion], str] = {}

    def request(
        self,
        prompt: np.ndarray | None = None,
        *,
        seed: int = 0,
        max_tokens: int = 16,
        adapter: str | None = None,
        **sampling: object,
    ) -> GenerateRequest:
        """Returns a request with an id of its own, by default for the first prompt."""
        return GenerateRequest(
            id=self.fresh_id(),
            prompt_ids=self.prompts[0] if prompt is None else prompt,
            seed=seed,
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type] # by name
            adapter=adapter,
        )

    def fresh_id(self) -> str:
        """Returns an id that no request had."""
        self._next_id += 1
        return f"conformance/{self._next_id}"

    def start(self, request: GenerateRequest) -> asyncio.Task[Completion]:
        """Submits a request as a task of its own."""
        task = asyncio.get_running_loop().create_task(self._generate(request))
        self._tasks[task] = request.id
        return task

    async def start_long(
        self, *, adapter: str | None = None
    ) -> tuple[GenerateRequest, asyncio.Task[Completion]]:
        """Submits a long request and returns when its first token is there."""
        request = self.request(max_tokens=self.long_tokens, adapter=adapter)
        task = self.start(request)
        while (await self.engine.load()).kv_tokens <= len(request.prompt_ids):
            if task.done():
                raise Violation(f"a completion of {self.long_tokens} tokens ended unseen; raise long_tokens")
            await asyncio.sleep(0)
        return request, task

    async def complete(self, *requests: GenerateRequest) -> list[Completion]:
        """Submits requests together and returns their completions in the same order."""
        return list(await asyncio.gather(*[self.start(request) for request in requests]))

    async def update(self, policy: Policy, version: int) -> WeightReceipt:
        """Loads a policy under a version and checks the receipt."""
        receipt = await self.engine.update_weights(WeightUpdate(version=version, buckets=policy.buckets))
        expected = WeightReceipt(version=version, checksum=weights_checksum(policy.buckets))
        expect(receipt == expected, f"the receipt is {receipt}, expected is {expected}")
        return receipt

    async def settle(self) -> None:
        """Ends what a check left in flight."""
        left = [request_id for task, request_id in self._tasks.items() if not task.done()]
        await self.engine.abort(left)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def expect_scored(
        self, completion: Completion, policy: Scored, temperature: float, *, tokens: slice = ALL_TOKENS
    ) -> None:
        """The log-probs of some tokens agree with the plain scorer, if the engine gives any."""
        if not self.capabilities.logprobs:
            return
        expected = policy.score(completion.prompt_ids, completion.token_ids, temperature)
        error = float(np.abs(completion.logprobs - expected)[tokens].max(initial=0.0))
        where = f"at {temperature=}" if tokens == ALL_TOKENS else f"in tokens {tokens.start} to {tokens.stop}"
        allowed = f"allowed is {self.tolerance:.2e}"
        expect(error <= self.tolerance, f"log-probs differ by {error:.2e} {where}, {allowed}")

    def expect_crossing(self, completion: Completion, first: Scored, second: Scored) -> None:
        """The first run of a completion's versions is scored by one policy, the rest by another."""
        before = completion.versions[0][1]
        self.expect_scored(completion, first, 1.0, tokens=slice(0, before))
        self.expect_scored(completion, second, 1.0, tokens=slice(before, len(completion)))

    async def expect_waiting(self, task: asyncio.Task[Completion], while_: str) -> None:
        """A request that was submitted is not served for a while."""
        for _ in range(20):
            await asyncio.sleep(0.002)
        expect(not task.done(), f"a request was served while {while_}")

    def expect_same(self, first: Completion, second: Completion, when: str) -> None:
        """Two completions have the same tokens, and log-probs within the tolerance."""
        same = np.array_equal(first.token_ids, second.token_ids)
        expect(same, f"tokens differ {when}: {first.token_ids.tolist()} and {second.token_ids.tolist()}")
        if not self.capabilities.logprobs:
            return
        error = float(np.abs(first.logprobs - second.logprobs).max(initial=0.0))
        expect(error <= self.tolerance, f"log-probs differ by {error:.2e} {when}")

    async def _generate(self, request: GenerateRequest) -> Completion:
        completion = await self.engine.generate(request)
        got = completion.request_id
        expect(got == request.id, f"{request.id}: got the completion of {got}")
        expect(completion.seed == request.seed, f"{request.id}: seed {completion.seed}, not {request.seed}")
        same_prompt = np.array_equal(completion.prompt_ids, request.prompt_ids)
        expect(same_prompt, f"{request.id}: prompt_ids are not those of the request")
        expect(len(completion) <= request.sampling.max_tokens, f"{request.id}: {len(completion)} tokens")
        return completion


Check = Callable[[Bench], Awaitable[None]]
"""Raises `Violation`, or any other exception, if the engine does not conform."""


def expect(holds: bool, otherwise: str) -> None:
    """Raises `Violation` with the message `otherwise` unless the condition holds."""
    if not holds:
        raise Violation(otherwise)
