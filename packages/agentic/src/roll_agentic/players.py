"""Policies without a model of their own: by chance, script, hand or remote endpoint. For evaluation."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from roll_agentic.conformance import DEFAULT_ACTIONS
from roll_agentic.errors import AgenticError
from roll_agentic.policy import EpisodeState, Turn


class RandomPolicy:
    """Says one of `info["actions"]`, else one of the given actions, by chance.

    The choice belongs to the episode's seed, the turn and, in a game, the player.

    Args:
        actions: What to choose from where the environment names none, at least 1.

    Raises:
        AgenticError: There are no actions.
    """

    def __init__(self, actions: Sequence[str] = DEFAULT_ACTIONS) -> None:
        if not actions:
            raise AgenticError("RandomPolicy needs at least one action, got none")
        self._actions = tuple(actions)

    async def act(self, state: EpisodeState) -> Turn:
        """A random action."""
        named = state.info.get("actions")
        choices = named if isinstance(named, list | tuple) and named else self._actions
        chance = random.Random(f"{state.seed}/{state.turn}/{state.info.get('player')}")
        return Turn(response=str(chance.choice(choices)))


class ScriptedPolicy:
    """Says the given texts one after the other, and from then on the last one.

    Args:
        texts: At least one.

    Raises:
        AgenticError: There are no texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if not texts:
            raise AgenticError("ScriptedPolicy needs at least one text, got none")
        self._texts = tuple(texts)

    async def act(self, state: EpisodeState) -> Turn:
        """The text of this turn."""
        return Turn(response=self._texts[min(state.turn, len(self._texts) - 1)])


class PersonPolicy:
    """A person at a terminal.

    Args:
        ask: Shows a text and returns the answer; raises `EOFError` to leave.
    """

    def __init__(self, ask: Callable[[str], str] = input) -> None:
        self._ask = ask

    async def act(self, state: EpisodeState) -> Turn:
        """What the person says; the wait does not block the event loop."""
        shown = f"\n{state.messages[-1].text}\n> "
        return Turn(response=await asyncio.to_thread(self._ask, shown))


class EndpointPolicy:
    """A model behind an OpenAI-compatible endpoint, for evaluation: text only, nothing to train.

    Args:
        model: Name of the model at the endpoint.
        base_url: Address of the endpoint; None for what the environment variables of the client say.
        api_key: Key; None likewise, `none` where the endpoint is given and needs no key.
        system: System message; None for `info["instructions"]` of the first observation, if any.
        max_tokens: Tokens of a turn, at least 1.
        temperature: At least 0.

    Raises:
        AgenticError: The extra `openai` is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        system: str | None = None,
        max_tokens: int = 1024,
        temperature: float = 1.0,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise AgenticError("an endpoint needs the client: pip install 'roll-agentic[openai]'") from error
        key = api_key if api_key is not None or base_url is None else "none"
        self._client: Any = openai.AsyncOpenAI(base_url=base_url, api_key=key)
        self._model, self._system = model, system
        self._max_tokens, self._temperature = max_tokens, temperature

    async def act(self, state: EpisodeState) -> Turn:
        """The endpoint's answer to the chat so far."""
        system = self._system or state.first_info.get("instructions")
        messages = [{"role": "system", "content": str(system)}] if system else []
        roles = {"environment": "user", "policy": "assistant"}
        messages += [{"role": roles[message.role], "content": message.text} for message in state.messages]
        answer = await self._client.chat.completions.create(
            model=self._model,
            messages=messages,
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=state.seed % 2**31,
        )
        choice = answer.choices[0]
        cut_off = choice.finish_reason == "length"
        return Turn(response=choice.message.content or "", finish_reason="length" if cut_off else "stop")
