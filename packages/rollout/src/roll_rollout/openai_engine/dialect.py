"""The completions call of OpenAI-compatible servers, and what it takes to get ids and log-probs from it."""

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from roll_rollout.errors import EngineError, PromptTooLong, UnsupportedRequest
from roll_rollout.http_endpoint import HttpEndpoint, Refused, Unanswered
from roll_rollout.stop_strings import Decode
from roll_rollout.token_run import TokenRun, continued_seed

LogprobsOf = Literal["sampled", "raw", "none"]
Encode = Callable[[str], Sequence[int]]

_FINISHED = {"stop": "stop", "length": "length", "abort": "abort"}
_TOKEN_ID = "token_id:"
_TOO_LONG = ("context length", "maximum context", "max_model_len", "too many tokens", "context window")


class OpenAIDialect:
    """`POST /completions`, streamed.

    vLLM's extensions `return_token_ids` and `return_tokens_as_token_ids` are asked for; a server that ignores
    them gives text alone, which is good enough only where nothing is trained.

    Args:
        endpoint: The server.
        model: The name that it knows the model by.
        logprobs_of: Of which distribution its log-probs are.
        for_training: Whether completions without sampled ids and log-probs are refused.
        encode: Text to ids, for servers that give text alone.
        decode: Ids to text, for servers that take text alone.
        prompts_as_text: Whether prompts are sent as text.
        extra_body: More fields of every request.
        version: Policy version of the server's weights.
    """

    path = "/completions"

    def __init__(
        self,
        endpoint: HttpEndpoint,
        *,
        model: str,
        logprobs_of: LogprobsOf,
        for_training: bool,
        encode: Encode | None,
        decode: Decode | None,
        prompts_as_text: bool,
        extra_body: Mapping[str, Any],
        version: int,
    ) -> None:
        self.version = version
        self._endpoint = endpoint
        self._model = model
        self._logprobs_of = logprobs_of
        self._for_training = for_training
        self._encode = encode
        self._decode = decode
        self._prompts_as_text = prompts_as_text
        self._extra_body = dict(extra_body)

    def body(self, run: TokenRun) -> dict[str, Any]:
        """Returns the request as the server takes it."""
        request, asked = run.request, run.request.sampling
        ids = request.context_ids.tolist()
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": self._decode(ids) if self._prompts_as_text and self._decode else ids,
            "max_tokens": run.room - run.before,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            # Signed in many servers.
            "seed": continued_seed(request.seed, run.before) % 2**63,
            "stream": True,
        }
        if self._logprobs_of != "none":
            body["logprobs"] = 0
        if asked.stop:
            body["stop"] = list(asked.stop)
        extensions: dict[str, Any] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        if asked.top_k:
            extensions["top_k"] = asked.top_k
        if asked.min_p:
            extensions["min_p"] = asked.min_p
        if asked.stop_token_ids:
            extensions["stop_token_ids"] = list(asked.stop_token_ids)
        if not self._prompts_as_text:
            # End tokens come from the request alone.
            extensions |= {"ignore_eos": True, "skip_special_tokens": False, "add_special_tokens": False}
        return body | extensions | self._extra_body

    async def attempt(self, run: TokenRun) -> AsyncGenerator[None, None]:
        """Sends a request once. See `ServerDialect.attempt`."""
        texts: list[str] = []
        reason: str | None = None
        gives_ids = False
        try:
            async with aclosing(self._endpoint.events(self.path, self.body(run))) as events:
                async for event in events:
                    choice = _choice(event)
                    if choice is None:
                        continue
                    texts.append(choice.get("text") or "")
                    reason = choice.get("finish_reason") or reason
                    gives_ids = gives_ids or choice.get("token_ids") is not None
                    if self._take(run, choice):
                        yield
        except Refused as error:
            raise _refusal(run, error) from error
        if reason is None:
            raise Unanswered("the stream ended before the completion did")
        if not run.drawn and not gives_ids and "".join(texts):
            self._take_text(run, "".join(texts))
            yield
        run.finish(_FINISHED.get(reason, reason), [(self.version, 0)], self.version)

    async def abort(self, run: TokenRun) -> bool:
        """Nothing to do: the server sees that the connection is closed."""
        return False

    def _take(self, run: TokenRun, choice: Mapping[str, Any]) -> bool:
        """Appends the tokens of an event; returns whether it had any."""
        logprobs = choice.get("logprobs") or {}
        ids = choice.get("token_ids")
        if ids is None:
            ids = _ids_by_name(logprobs.get("tokens"))
        if not ids:
            return False
        values = logprobs.get("token_logprobs")
        if values is None or self._hides_logprobs(run):
            if self._for_training:
                raise UnsupportedRequest(
                    f"request {run.request.id!r}: endpoint {self._endpoint.address} gives no log-probs, "
                    "which training needs; serve the model with them, or take for_training=False"
                )
            values = [math.nan] * len(ids)
        run.extend(ids, [math.nan if value is None else value for value in values])
        return True

    def _hides_logprobs(self, run: TokenRun) -> bool:
        """Whether the log-probs are of another distribution than the tokens were drawn from."""
        if self._logprobs_of != "raw":
            return self._logprobs_of == "none"
        asked = run.request.sampling
        return asked.temperature not in (0.0, 1.0) or not asked.full_distribution

    def _take_text(self, run: TokenRun, text: str) -> None:
        """Appends ids of a completion that came as text."""
        where = f"request {run.request.id!r}: endpoint {self._endpoint.address} gives no token ids"
        if self._for_training:
            raise UnsupportedRequest(
                f"{where}, which training needs (vLLM's `return_token_ids`); for evaluation take "
                "for_training=False and encode"
            )
        if self._encode is None:
            raise UnsupportedRequest(f"{where}: to tokenise its text, the engine needs encode")
        ids = list(self._encode(text))
        run.exact = False
        run.extend(ids, [math.nan] * len(ids))


def _choice(event: Any) -> Mapping[str, Any] | None:
    """Returns the one choice of an event; None for an event about something else.

    Raises:
        Unanswered: The event is an error.
    """
    if not isinstance(event, dict):
        raise Unanswered(f"an event that is no object: {str(event)[:100]!r}")
    if event.get("error"):
        raise Unanswered(f"an error in the stream: {str(event['error'])[:300]}")
    choices = event.get("choices")
    return choices[0] if choices else None


def _ids_by_name(names: Sequence[str] | None) -> list[int] | None:
    """Returns the ids in names such as "token_id:15"; None if the names are texts."""
    if not names or not all(name.startswith(_TOKEN_ID) for name in names):
        return None
    return [int(name.removeprefix(_TOKEN_ID)) for name in names]


def _refusal(run: TokenRun, error: Refused) -> EngineError:
    where = f"request {run.request.id!r}"
    if error.status in (400, 413, 422) and any(words in error.text.lower() for words in _TOO_LONG):
        return PromptTooLong(f"{where}: a prompt of {len(run.request.context_ids)} tokens: {error}")
    if error.status in (401, 403):
        return EngineError(f"{where}: the credentials were not accepted: {error}")
    return EngineError(f"{where}: {error}")
