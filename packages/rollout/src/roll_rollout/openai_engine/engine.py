"""The engine that stands before an OpenAI-compatible endpoint: a server of one's own, or somebody else's."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from roll_rollout.capabilities import EngineCapabilities
from roll_rollout.chunk import CompletionChunk
from roll_rollout.completion import Completion
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineError, SamplingError, UnsupportedRequest
from roll_rollout.http_endpoint import HttpEndpoint, RetryPolicy
from roll_rollout.openai_engine.dialect import Encode, LogprobsOf, OpenAIDialect
from roll_rollout.refusal import refuse_unsupported
from roll_rollout.request import GenerateRequest
from roll_rollout.server_requests import ServerRequests
from roll_rollout.stop_strings import Decode
from roll_rollout.token_run import TokenRun
from roll_rollout.weights import WeightReceipt, WeightUpdate

_LOGPROBS_OF = ("sampled", "raw", "none")


class OpenAIEngine:
    """An `Engine` on `POST /completions` of any compatible server.

    Training needs the ids that were sampled and their log-probs. vLLM's server gives both; start it with
    `--logprobs-mode processed_logprobs` and say `logprobs_of="sampled"` to sample at a
    temperature other than 1.
    With `for_training=False` a server that gives text alone will do: its text is tokenised again, and the
    completion says that it is not exact.

    The engine cannot change the server's weights. Requests are retried as `retry` says.

    Args:
        address: Such as "http://localhost:8000/v1".
        model: The name that the server knows the model by.
        api_key: Sent as a bearer token.
        logprobs_of: "sampled": its log-probs are of the distribution after temperature and filters; "raw": of
            the one before (OpenAI, and vLLM by default); "none": it gives none.
        for_training: Whether requests are refused that would come back without sampled ids and log-probs.
        decode: Ids to text. Needed for stop strings, and for prompts as text.
        encode: Text to ids, for servers that give text alone.
        prompts_as_text: Whether prompts are sent as text; some servers take no ids.
        max_context: Most tokens of prompt and completion; by default the server decides.
        most_running: Requests that are sent at once.
        retry: When a request is sent again.
        version: Policy version of the server's weights.
        extra_body: More fields of every request.
        sleep: Waits for a number of seconds.

    Raises:
        EngineError: An argument is out of range, or one needs another.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str,
        api_key: str | None = None,
        logprobs_of: LogprobsOf = "raw",
        for_training: bool = True,
        decode: Decode | None = None,
        encode: Encode | None = None,
        prompts_as_text: bool = False,
        max_context: int | None = None,
        most_running: int = 128,
        retry: RetryPolicy | None = None,
        version: int = 0,
        extra_body: Mapping[str, Any] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if logprobs_of not in _LOGPROBS_OF:
            raise EngineError(f"logprobs_of is {logprobs_of!r}, allowed is one of {_LOGPROBS_OF}")
        if for_training and logprobs_of == "none":
            raise EngineError("logprobs_of is 'none', and training needs log-probs: take for_training=False")
        if prompts_as_text and (decode is None or for_training):
            raise EngineError("prompts_as_text needs decode and for_training=False: text is not exact")
        self._endpoint = HttpEndpoint(
            address,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            retry=retry or RetryPolicy(),
            most_connections=most_running,
            sleep=sleep,
        )
        self._logprobs_of, self._for_training = logprobs_of, for_training
        self._max_context = max_context
        dialect = OpenAIDialect(
            self._endpoint,
            model=model,
            logprobs_of=logprobs_of,
            for_training=for_training,
            encode=encode,
            decode=decode,
            prompts_as_text=prompts_as_text,
            extra_body=extra_body or {},
            version=version,
        )
        self._requests = ServerRequests(self._endpoint, dialect, decode=decode, most_running=most_running)
        self._capabilities = EngineCapabilities(
            logprobs=logprobs_of != "none",
            weight_updates=False,
            stop_strings=decode is not None,
            continuation="fresh",
            streaming=True,
            health=True,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do. See `DescribedEngine`."""
        return self._capabilities

    @property
    def retries(self) -> int:
        """How often a request was sent again so far."""
        return self._endpoint.retries

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`.

        Raises:
            SamplingError: The server's log-probs would be of another distribution, and training needs them.
            UnsupportedRequest: The server gives no ids or no log-probs, and training needs them.
            EngineUnavailable: No attempt was answered.
        """
        return await self._requests.complete(self._check(request))

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of one request in pieces. See `StreamingEngine.stream`."""
        run = self._check(request)
        stream = self._requests.stream(run)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await stream.aclose()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with the tokens they have. See `Engine.abort`."""
        await self._requests.abort(request_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Cannot be done through this protocol.

        Raises:
            UnsupportedRequest: Always.
        """
        self._requests.require_open("update_weights")
        raise UnsupportedRequest(
            f"update_weights: version {update.version} for {self._endpoint.address}: the weights of an "
            "OpenAI-compatible endpoint cannot be replaced; use a vLLM or SGLang engine"
        )

    async def load(self) -> EngineLoad:
        """Returns how busy the server is with this engine's requests."""
        return await self._requests.load()

    async def check_health(self) -> None:
        """Returns if the server lists its models. See `CheckedEngine`."""
        self._requests.require_open("check_health")
        await self._endpoint.get("/models")

    async def close(self) -> None:
        """Ends all requests with `EngineClosed` and closes the connections. See `Engine.close`."""
        await self._requests.close()

    def _check(self, request: GenerateRequest) -> TokenRun:
        self._requests.require_new(request.id)
        room = refuse_unsupported(request, self._capabilities, adapters=(), max_context=self._max_context)
        asked = request.sampling
        raw = self._logprobs_of == "raw" and self._for_training
        if raw and (asked.temperature not in (0.0, 1.0) or not asked.full_distribution):
            raise SamplingError(
                f"request {request.id!r}: the endpoint's log-probs are raw: training needs temperature 1 "
                f"and no filter, got temperature {asked.temperature}, top_p {asked.top_p}, "
                f"top_k {asked.top_k}, min_p {asked.min_p}; or serve log-probs of the sampled distribution "
                "and say logprobs_of='sampled'"
            )
        return TokenRun(request, room, library="the endpoint")
