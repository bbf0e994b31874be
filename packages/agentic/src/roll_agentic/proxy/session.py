"""What one agent asked and got, token for token, put together into transcripts. Kept by the proxy server.

An agent sends the whole chat with every call. A call continues an earlier one when its messages begin
with that call's messages and the reply that was given to it; then its prompt is that call's tokens and
the new messages behind them, and nothing that was sampled is tokenised again. Any other call (the first,
an edited or compacted history, a second agent) is rendered from its text and begins a branch.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roll_agentic.chat import ChatMessage, ChatTokenizer, first_ids, following_ids
from roll_agentic.chat_policy import Sampled
from roll_agentic.errors import AgenticError
from roll_agentic.history import History
from roll_agentic.segment import Segment
from roll_agentic.tools.schema import ToolSchema


class UnknownSession(AgenticError):
    """No session has this key."""


class SessionClosed(AgenticError):
    """The session is over, or out of calls or tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedCall:
    """One call of an agent.

    Example: the second call of a chat has `parent=0` and its context is only what is new.

    Attributes:
        parent: Number of the call that it continues; None for none.
        context: Tokens between the parent's reply and the sampled ones; the whole prompt without parent.
        sampled: What the engine sampled.
        messages: How many messages the request had.
        tag: Digest of the messages and the reply: what a continuing call begins with.
    """

    parent: int | None
    context: Segment
    sampled: Segment
    messages: int
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedPrompt:
    """The prompt of a call before it is sampled.

    Attributes:
        parent: Number of the call that it continues; None for none.
        context: int32[C], the new tokens.
        ids: int32[N], the whole prompt.
    """

    parent: int | None
    context: np.ndarray
    ids: np.ndarray


class Session:
    """The calls of one episode.

    Args:
        key: What the agent authenticates with.
        seed: Of the episode.
        max_calls: Calls at most, at least 1; None for any number.
        max_tokens: Sampled tokens at most, at least 1; None for any number.
    """

    def __init__(
        self, key: str, *, seed: int = 0, max_calls: int | None = None, max_tokens: int | None = None
    ) -> None:
        self.key, self.seed = key, seed
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self._calls: list[RecordedCall] = []
        self._begun = 0
        self._tags: dict[str, int] = {}
        self._sampled_tokens = 0
        self._is_open = True

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """All calls that were answered, in the order of their answers."""
        return tuple(self._calls)

    @property
    def is_open(self) -> bool:
        """Whether calls are still answered."""
        return self._is_open

    def close(self) -> None:
        """Answer no further calls."""
        self._is_open = False

    def begin(self) -> int:
        """Admit a call; returns its number, for the seed of its sampling.

        Raises:
            SessionClosed: The session is over or out of calls or tokens.
        """
        if not self._is_open:
            raise SessionClosed("the session is over")
        if self._max_calls is not None and self._begun >= self._max_calls:
            raise SessionClosed(f"the session is out of calls: it had {self._max_calls}")
        if self._max_tokens is not None and self._sampled_tokens >= self._max_tokens:
            raise SessionClosed(f"the session is out of tokens: it had {self._max_tokens}")
        self._begun += 1
        return self._begun - 1

    def prepare(
        self, chat: ChatTokenizer, messages: Sequence[ChatMessage], tools: Sequence[ToolSchema]
    ) -> PreparedPrompt:
        """The tokens of a call's prompt, by continuing an earlier call where it does.

        Raises:
            TranscriptError: The template cannot be continued.
        """
        digests = _digests(messages, tools)
        for known in range(len(messages) - 1, 0, -1):
            parent = self._tags.get(digests[known - 1])
            if parent is not None and messages[known - 1].get("role") == "assistant":
                before = self._tokens(parent)
                ended = bool(before[-1] == chat.end_token_id)
                new = following_ids(chat, messages[known:], tools=tools, ended=ended)
                context = np.array(new, np.int32)
                return PreparedPrompt(parent=parent, context=context, ids=np.concatenate([before, context]))
        ids = np.array(first_ids(chat, messages, tools=tools), np.int32)
        return PreparedPrompt(parent=None, context=ids, ids=ids)

    def record(
        self,
        prompt: PreparedPrompt,
        sampled: Sampled,
        *,
        messages: Sequence[ChatMessage],
        reply: ChatMessage,
        tools: Sequence[ToolSchema],
    ) -> RecordedCall:
        """Keep an answered call.

        Args:
            prompt: What was sampled after.
            sampled: What was sampled.
            messages: Of the request.
            reply: The assistant's message as it was given to the agent.
            tools: Of the request.

        Raises:
            SessionClosed: The session was closed meanwhile: the answer does not count any more.
        """
        if not self._is_open:
            raise SessionClosed("the session was closed while the call was answered")
        call = RecordedCall(
            parent=prompt.parent,
            context=Segment(
                source="template" if prompt.parent is None else "environment", token_ids=prompt.context
            ),
            sampled=Segment(
                source="sampled",
                token_ids=sampled.token_ids,
                logprobs=sampled.logprobs,
                versions=sampled.versions,
                finish_reason=sampled.finish_reason,
            ),
            messages=len(messages),
            tag=_digests([*messages, reply], tools)[-1],
        )
        self._tags[call.tag] = len(self._calls)
        self._calls.append(call)
        self._sampled_tokens += len(call.sampled)
        return call

    def history(self) -> tuple[History, tuple[int, ...]]:
        """The transcripts, and for each of their turns the number of its call.

        A chain of calls is a branch; where a call was continued twice, the second branch inherits what
        both have in common, so that it is trained once.
        """
        history = History()
        order: list[int] = []
        chains: list[list[int]] = []
        for number, call in enumerate(self._calls):
            chain = next((c for c in chains if c[-1] == call.parent), None)
            if chain is None:
                chains.append([number])
            else:
                chain.append(number)
        for position, chain in enumerate(chains):
            parent = self._calls[chain[0]].parent
            inherited = self._path(parent)
            if position == 0:
                transcript = history.current
            else:
                reason = "fork: history was rewritten" if parent is None else f"fork: call {parent} continued"
                transcript = history.start(reason, first_turn=len(order), inherited=inherited)
            for number in chain:
                transcript.append(self._calls[number].context)
                transcript.append(self._calls[number].sampled)
                order.append(number)
        return history, tuple(order)

    def _path(self, number: int | None) -> list[Segment]:
        """Segments from the beginning up to a call."""
        segments: list[Segment] = []
        while number is not None:
            call = self._calls[number]
            segments[:0] = [call.context, call.sampled]
            number = call.parent
        return segments

    def _tokens(self, number: int) -> np.ndarray:
        return np.concatenate([segment.token_ids for segment in self._path(number)])


class SessionBook:
    """The sessions of a server, by key."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def open(
        self,
        *,
        key: str | None = None,
        seed: int = 0,
        max_calls: int | None = None,
        max_tokens: int | None = None,
    ) -> Session:
        """A new session.

        Args:
            key: What the agent authenticates with; None for a random one.
            seed: Of the episode.
            max_calls: See `Session`.
            max_tokens: See `Session`.

        Raises:
            AgenticError: The key is empty or taken, or a limit is below 1.
        """
        name = secrets.token_urlsafe(24) if key is None else key
        if not name or name in self._sessions:
            raise AgenticError("a session needs a key that is neither empty nor taken")
        for limit in (max_calls, max_tokens):
            if limit is not None and limit < 1:
                raise AgenticError(f"limits of a session are at least 1, got {limit}")
        session = Session(name, seed=seed, max_calls=max_calls, max_tokens=max_tokens)
        self._sessions[name] = session
        return session

    def find(self, key: str) -> Session:
        """The session of a key.

        Raises:
            UnknownSession: There is none.
        """
        if key not in self._sessions:
            raise UnknownSession("no session has this key")
        return self._sessions[key]

    def forget(self, session: Session) -> None:
        """Close a session and free its key and tokens."""
        session.close()
        self._sessions.pop(session.key, None)

    def __len__(self) -> int:
        """Sessions, open and closed."""
        return len(self._sessions)


def canonical(message: ChatMessage) -> dict[str, object]:
    """A message in the form in which two that mean the same are equal.

    Absent, null and empty contents are one; text parts are joined; arguments of calls are compared as
    JSON, their ids as they are; names, refusals and other extras are left out.

    Args:
        message: In OpenAI's form.
    """
    calls = message.get("tool_calls")
    plain: dict[str, object] = {"role": message.get("role"), "content": content_text(message.get("content"))}
    if isinstance(calls, Sequence) and calls:
        plain["tool_calls"] = [_canonical_call(call) for call in calls]
    if message.get("tool_call_id"):
        plain["tool_call_id"] = message["tool_call_id"]
    return plain


def content_text(content: object) -> str:
    """The text of a message's content: as it is, or its text parts one after the other."""
    if content is None:
        return ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [part.get("text", "") for part in content if isinstance(part, Mapping)]
        return "".join(str(part) for part in parts)
    return str(content)


def _canonical_call(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return repr(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {"id": call.get("id"), "name": function.get("name"), "arguments": arguments}


def _digests(messages: Sequence[ChatMessage], tools: Sequence[ToolSchema]) -> list[str]:
    """For each message a digest of the tools and all messages up to it."""
    running = hashlib.sha256(json.dumps(list(tools), sort_keys=True, default=str).encode())
    digests = []
    for message in messages:
        running.update(json.dumps(canonical(message), sort_keys=True, default=str).encode() + b"\n")
        digests.append(running.hexdigest())
    return digests
