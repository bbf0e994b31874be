"""Endpoints that write a judge's text: any OpenAI-compatible chat service, or any async function."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll_rewards.errors import RewardError
from roll_rewards.remote.patience import Patience, authorization, send_patiently
from roll_rewards.remote.rate import RateLimit
from roll_rewards.remote.transport import RemoteError, send

Messages = Sequence[Mapping[str, str]]
_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an endpoint wrote.

    Example: `Written(text="Verdict: YES", prompt_tokens=210, completion_tokens=4)`.

    Attributes:
        text: The message's content.
        prompt_tokens: As the service counts them, 0 when it does not.
        completion_tokens: The same of what was written.
        seconds: Wall time, waits between attempts included, the queue not.
        cost: In the currency of the endpoint's prices.
        first_words: Log-probabilities of the likeliest first tokens, by text, where they were asked for.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    first_words: Mapping[str, float] = field(default_factory=dict)


Generate = Callable[[Messages], Awaitable[str | Written]]
"""Any engine: an async function from chat messages to what it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEndpoint:
    """An OpenAI-compatible chat completions service.

    Example: `ChatEndpoint(url="http://127.0.0.1:8000/v1", model="judge", key_env="JUDGE_KEY")`.

    Attributes:
        url: Up to and with `/v1`; `/chat/completions` is added.
        model: Name of the model.
        key_env: Environment variable with the key; None sends none.
        temperature: Of sampling; judges are steadier at 0.
        max_tokens: Longest text.
        extra: Further fields of the request, as in `{"seed": 1}`.
        logprobs: Whether the first token's likeliest alternatives are asked for.
        timeout_s: Wall seconds for one attempt, above 0.
        patience: What happens when one fails.
        rate: How many at a time and a minute.
        prompt_price: For a million prompt tokens, at least 0.
        completion_price: For a million written tokens, at least 0.

    Raises:
        RewardError: The address is none, or a number is out of its range.
    """

    url: str
    model: str
    key_env: str | None = None
    temperature: float = 0.0
    max_tokens: int = 1024
    extra: Mapping[str, object] = field(default_factory=dict)
    logprobs: bool = False
    timeout_s: float = 60.0
    patience: Patience = field(default_factory=Patience)
    rate: RateLimit = field(default_factory=RateLimit, compare=False)
    prompt_price: float = 0.0
    completion_price: float = 0.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise RewardError(f"a judge's 'url' must begin with http:// or https://, got {self.url!r:.200}")
        if self.max_tokens < 1 or not self.timeout_s > 0 or self.temperature < 0:
            raise RewardError(
                "a judge needs max_tokens >= 1, timeout_s above 0 and temperature of at least 0, "
                f"got {self.max_tokens}, {self.timeout_s} and {self.temperature}"
            )

    async def __call__(self, messages: Messages) -> Written:
        """What the model writes.

        Raises:
            RemoteError: The service cannot be reached, refuses, or answers something else than a completion.
        """
        address = f"{self.url.rstrip('/')}/chat/completions"
        payload: dict[str, object] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **({"logprobs": True, "top_logprobs": _TOP_LOGPROBS} if self.logprobs else {}),
            **self.extra,
        }
        headers = authorization(self.key_env)
        async with self.rate.turn():
            started = time.monotonic()
            reply = await send_patiently(
                lambda: send("POST", address, payload=payload, headers=headers, timeout_s=self.timeout_s),
                self.patience,
                address,
            )
        return self._written(reply.json(address), time.monotonic() - started, address)

    def _written(self, body: object, seconds: float, address: str) -> Written:
        choice: Any = body
        try:
            choice = choice["choices"][0]
            text = choice["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise RemoteError(f"{address} answered no completion: {body!r:.200}") from error
        usage = body.get("usage") if isinstance(body, Mapping) else None
        counts = usage if isinstance(usage, Mapping) else {}
        prompt, completion = (int(counts.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        return Written(
            text=str(text),
            prompt_tokens=prompt,
            completion_tokens=completion,
            seconds=seconds,
            cost=(prompt * self.prompt_price + completion * self.completion_price) / 1e6,
            first_words=_first_words(choice),
        )


def _first_words(choice: Any) -> dict[str, float]:
    try:
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        return {str(item["token"]): float(item["logprob"]) for item in top}
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def yes_probability(first_words: Mapping[str, float]) -> float | None:
    """P(yes) / (P(yes) + P(no)) of a first token, over all its spellings; None when neither is likely.

    Source: Generative Verifiers (arXiv 2408.15240), equation 3, normalised over the two answers.
    """
    mass = {"yes": 0.0, "no": 0.0}
    for token, logprob in first_words.items():
        word = token.strip().strip("▁Ġ").lower()
        if word in mass:
            mass[word] += math.exp(min(logprob, 0.0))
    total = mass["yes"] + mass["no"]
    return mass["yes"] / total if total > 0 else None


async def written_by(generate: Generate, messages: Messages) -> Written:
    """What any engine writes, timed, with its text alone made a `Written`.

    Args:
        generate: An endpoint or an async function.
        messages: The chat so far.
    """
    started = asyncio.get_running_loop().time()
    answer = await generate(messages)
    if isinstance(answer, Written):
        return answer
    return Written(text=str(answer), seconds=asyncio.get_running_loop().time() - started)
