"""What every conformance check works with: the engine, its policies, and the requests in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roll_rollout.completion import Completion
from roll_rollout.engine import Engine
from roll_rollout.request import GenerateRequest
from roll_rollout.sampling import SamplingParams
from roll_rollout.weights import WeightBucket, WeightReceipt, WeightUpdate, weights_checksum

Score = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""Prompt ids, token ids and temperature to the log-prob of each token, computed in the plainest way."""


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


class Bench:
    """An engine under test.

    Args:
        engine: Starts with the first policy.
        policies: Two policies with different weights of the same model.
        prompts: Distinct prompts.
        tolerance: Largest difference of log-probs.
        long_tokens: Length of a completion that takes long enough to be met on its way.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policies: tuple[Policy, Policy],
        prompts: Sequence[np.ndarray],
        tolerance: float,
        long_tokens: int,
    ) -> None:
        self.engine = engine
        self.policies = policies
        self.prompts = list(prompts)
        self.tolerance = tolerance
        self.long_tokens = long_tokens
        self._next_id = 0
        self._tasks: dict[asyncio.Task[Completion], str] = {}

    def request(
        self, prompt: np.ndarray | None = None, *, seed: int = 0, max_tokens: int = 16, **sampling: object
    ) -> GenerateRequest:
        """Returns a request with an id of its own, by default for the first prompt."""
        self._next_id += 1
        return GenerateRequest(
            id=f"conformance/{self._next_id}",
            prompt_ids=self.prompts[0] if prompt is None else prompt,
            seed=seed,
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type] # by name
        )

    def start(self, request: GenerateRequest) -> asyncio.Task[Completion]:
        """Submits a request as a task of its own."""
        task = asyncio.get_running_loop().create_task(self._generate(request))
        self._tasks[task] = request.id
        return task

    async def start_long(self) -> tuple[GenerateRequest, asyncio.Task[Completion]]:
        """Submits a long request and returns when its first token is there."""
        request = self.request(max_tokens=self.long_tokens)
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

    def expect_scored(self, completion: Completion, policy: Policy, temperature: float) -> None:
        """The log-probs agree with the plain scorer."""
        expected = policy.score(completion.prompt_ids, completion.token_ids, temperature)
        error = float(np.abs(completion.logprobs - expected).max(initial=0.0))
        allowed = f"allowed is {self.tolerance:.2e}"
        expect(error <= self.tolerance, f"log-probs differ by {error:.2e} at {temperature=}, {allowed}")

    def expect_same(self, first: Completion, second: Completion, when: str) -> None:
        """Two completions have the same tokens, and log-probs within the tolerance."""
        same = np.array_equal(first.token_ids, second.token_ids)
        expect(same, f"tokens differ {when}: {first.token_ids.tolist()} and {second.token_ids.tolist()}")
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
