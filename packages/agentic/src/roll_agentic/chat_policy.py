"""A model behind an engine as a policy: chats in, sampled tokens out, the transcript exact."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args

import numpy as np

from roll_agentic.chat import ChatMessage, ChatTokenizer, first_ids, following_ids
from roll_agentic.errors import AgenticError
from roll_agentic.overflow import CUT_MARK, Overflow, Summariser, fit_history, summarised
from roll_agentic.policy import EpisodeState, Message, Turn
from roll_agentic.segment import FinishReason, Segment
from roll_agentic.stop import cut_at_stop
from roll_agentic.tools.schema import ToolSchema

HistoryMode = Literal["append", "render"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """What an engine sampled.

    Example: `Sampled(token_ids=[17, 2], logprobs=[-0.1, -0.0], versions=((3, 2),), finish_reason="stop")`.

    Attributes:
        token_ids: int32[T], with the end token if it was sampled.
        logprobs: float32[T] of the distribution that was sampled from.
        versions: Policy versions as runs (version, tokens) that add up to T.
        finish_reason: `stop`, `length` or `abort`.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: tuple[tuple[int, int], ...]
    finish_reason: FinishReason


class TokenEngine(Protocol):
    """What samples tokens after a prompt: an adapter to an engine."""

    async def sample(self, prompt_ids: np.ndarray, *, max_tokens: int, seed: int) -> Sampled:
        """Sample one turn.

        Args:
            prompt_ids: int32[N].
            max_tokens: Tokens at most, at least 1.
            seed: Of this turn, the same for the same episode and turn.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPolicyConfig:
    """How a chat policy plays.

    Example: `ChatPolicyConfig(context_tokens=4096, turn_tokens=512, overflow="truncate_oldest")`.

    Attributes:
        context_tokens: Prompt and response together, at least 2.
        turn_tokens: Tokens of a turn at most, at least 1.
        least_turn_tokens: A turn begins only if there is room for so many; by default for all of
            `turn_tokens`, so that no reply is cut short by a full context.
        history: `append`: new messages are appended to the tokens so far, so older turns stay as they
            were sampled whatever the template would do to them. `render`: the whole chat is rendered
            for every turn as in deployment; where that changes older tokens, a new branch begins.
        overflow: What to do when there is no room: `stop`, `truncate_oldest` (a new branch without the
            oldest turns) or `summarise` (a new branch with a summary of them).
        observation_chars: Characters of an observation at most; a longer one is cut in the middle.
        system: System message; None for `info["instructions"]` of the first observation, if any.
        tool_role: Role of what tools answered; `user` for templates that know no `tool`.
        stops: Stop sequences at which a response is cut, text and tokens alike.
        member: Number in the group, which the seeds of sampling derive from besides the episode's.

    Raises:
        AgenticError: A field is out of its range.
    """

    context_tokens: int
    turn_tokens: int
    least_turn_tokens: int | None = None
    history: HistoryMode = "append"
    overflow: Overflow = "stop"
    observation_chars: int = 20_000
    system: str | None = None
    tool_role: Literal["tool", "user"] = "tool"
    stops: tuple[str, ...] = ()
    member: int = 0

    def __post_init__(self) -> None:
        least = self.turn_tokens if self.least_turn_tokens is None else self.least_turn_tokens
        if not 1 <= least <= self.turn_tokens < self.context_tokens or self.observation_chars < 1:
            raise AgenticError(
                "a chat policy needs 1 <= least_turn_tokens <= turn_tokens < context_tokens and "
                f"observation_chars of at least 1, got {least}, {self.turn_tokens}, {self.context_tokens}, "
                f"{self.observation_chars}"
            )
        for name, value, allowed in (
            ("history", self.history, get_args(HistoryMode)),
            ("overflow", self.overflow, get_args(Overflow)),
        ):
            if value not in allowed:
                raise AgenticError(f"{name} is one of {', '.join(allowed)}; got {value!r}")

    @property
    def least(self) -> int:
        """Room that a turn needs."""
        return self.turn_tokens if self.least_turn_tokens is None else self.least_turn_tokens


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What is appended, or begins a branch, before a turn is sampled."""

    ids: list[int]
    whole: int
    branch: str = ""


class ChatPolicy:
    """Plays any environment with a chat model; one policy plays any number of episodes at once.

    Args:
        engine: Samples.
        chat: Template and tokenizer.
        config: How it plays.
        summarise: Makes summaries; needed for `overflow="summarise"` only.

    Raises:
        AgenticError: Summaries are wanted and nothing makes them.
    """

    def __init__(
        self,
        engine: TokenEngine,
        chat: ChatTokenizer,
        config: ChatPolicyConfig,
        *,
        summarise: Summariser | None = None,
    ) -> None:
        if config.overflow == "summarise" and summarise is None:
            raise AgenticError("overflow='summarise' needs summarise, which makes the summaries")
        self._engine, self._chat, self._config, self._summarise = engine, chat, config, summarise

    async def act(self, state: EpisodeState) -> Turn:
        """Sample the next turn.

        Raises:
            TranscriptError: The template cannot be continued; see `following_ids`.
        """
        messages = self._messages(state)
        tools = _tools(state)
        prompt = await self._prompt(state, messages, tools)
        if prompt is None:
            return Turn(response="", out_of_context=True)
        room = min(self._config.turn_tokens, self._config.context_tokens - prompt.whole)
        before = [] if prompt.branch else [state.transcript.token_ids]
        prompt_ids = np.concatenate([*before, np.array(prompt.ids, np.int32)])
        seed = turn_seed(state.seed, self._config.member, state.turn)
        sampled = await self._engine.sample(prompt_ids, max_tokens=room, seed=seed)
        context = Segment(source="environment" if state.turn else "template", token_ids=np.array(prompt.ids))
        segment, text = self._cut(sampled)
        return Turn(
            response=text,
            segments=(context, segment),
            finish_reason=cast(FinishReason, segment.finish_reason),
            branch=prompt.branch,
        )

    async def _prompt(
        self, state: EpisodeState, messages: list[ChatMessage], tools: Sequence[ToolSchema]
    ) -> _Prompt | None:
        """The tokens before the turn; None when there is no room and the policy is to stop."""
        config = self._config
        most = config.context_tokens - config.least
        prompt = self._continued(state, messages, tools)
        if prompt.whole <= most:
            return prompt
        if config.overflow == "stop":
            return None
        if config.overflow == "truncate_oldest":
            kept = self._without_oldest(messages, tools, most)
        elif len([m for m in messages if m["role"] != "system"]) > 1 and self._summarise is not None:
            kept = await summarised(messages, self._summarise)
        else:
            kept = None
        ids = first_ids(self._chat, kept, tools=tools) if kept else []
        if not kept or len(ids) > most:
            return None
        return _Prompt(ids, len(ids), branch=f"overflow: {config.overflow}")

    def _continued(
        self, state: EpisodeState, messages: list[ChatMessage], tools: Sequence[ToolSchema]
    ) -> _Prompt:
        known = len(state.transcript)
        if not known:
            ids = first_ids(self._chat, messages, tools=tools)
            return _Prompt(ids, len(ids))
        if self._config.history == "render":
            ids = first_ids(self._chat, messages, tools=tools)
            if np.array_equal(ids[:known], state.transcript.token_ids):
                return _Prompt(ids[known:], len(ids))
            return _Prompt(ids, len(ids), branch="template: rewrites history")
        ended = state.transcript.token_ids[-1] == self._chat.end_token_id
        ids = following_ids(self._chat, messages[-1:], tools=tools, ended=bool(ended))
        return _Prompt(ids, known + len(ids))

    def _without_oldest(
        self, messages: list[ChatMessage], tools: Sequence[ToolSchema], most: int
    ) -> list[ChatMessage] | None:
        sizes = [len(self._chat.encode(str(message["content"]))) + 4 for message in messages]
        budget = most
        while kept := fit_history(messages, sizes, budget=budget):
            excess = len(first_ids(self._chat, kept, tools=tools)) - most
            if excess <= 0:
                return kept
            # Separators are not in the sizes: ask for that much less.
            budget -= excess
        return None

    def _messages(self, state: EpisodeState) -> list[ChatMessage]:
        system = self._config.system
        if system is None:
            instructions = state.first_info.get("instructions")
            system = instructions if isinstance(instructions, str) else None
        head: list[ChatMessage] = [{"role": "system", "content": system}] if system else []
        return head + [
            {"role": self._role(message), "content": self._shortened(message.text)}
            for message in state.messages
        ]

    def _role(self, message: Message) -> str:
        if message.role == "policy":
            return "assistant"
        return self._config.tool_role if message.is_tool else "user"

    def _shortened(self, text: str) -> str:
        most = self._config.observation_chars
        if len(text) <= most:
            return text
        half = max(most - len(CUT_MARK), 0) // 2
        return text[:half] + CUT_MARK + text[len(text) - half :]

    def _cut(self, sampled: Sampled) -> tuple[Segment, str]:
        """The sampled segment and its text, both cut at a stop sequence; the end token is no text."""
        segment = Segment(
            source="sampled",
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish_reason=sampled.finish_reason,
        )
        ids = segment.token_ids.tolist()
        said = ids[:-1] if ids and ids[-1] == self._chat.end_token_id else ids
        text = self._chat.decode(said)
        if any(stop in text for stop in self._config.stops):
            pieces = [self._chat.decode(said[: i + 1]) for i in range(len(said))]
            added = [piece[len(pieces[i - 1]) if i else 0 :] for i, piece in enumerate(pieces)]
            cut = cut_at_stop(added, self._config.stops)
            return segment.head(cut.tokens), cut.text
        return segment, text


def turn_seed(seed: int, member: int, turn: int) -> int:
    """A seed for sampling one turn, 0..2**63 - 1.

    Args:
        seed: Of the episode, equal in a group.
        member: Number in the group.
        turn: Number of the turn.
    """
    digest = hashlib.sha256(f"turn/{seed}/{member}/{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _tools(state: EpisodeState) -> Sequence[ToolSchema]:
    tools = state.first_info.get("tools", ())
    return cast("Sequence[ToolSchema]", tools) if isinstance(tools, list | tuple) else ()
