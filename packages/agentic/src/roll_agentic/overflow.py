"""What happens when a history outgrows the model's context. Used by chat policies; each cut is recorded."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from roll_agentic.chat import ChatMessage
from roll_agentic.errors import AgenticError

Overflow: TypeAlias = Literal["stop", "truncate_oldest", "summarise"]
CUT_MARK = "\n[... cut off ...]\n"


class Summariser(Protocol):
    """Shortens a history, by a model or otherwise."""

    def __call__(self, messages: Sequence[ChatMessage], /) -> Awaitable[str]:
        """A text that stands for the messages."""
        ...


def fit_history(
    messages: Sequence[ChatMessage], sizes: Sequence[int], *, budget: int
) -> list[ChatMessage] | None:
    """The messages without the oldest turns, so that they fit.

    System messages at the beginning and the last message of the user stay; the oldest others go first, an
    assistant's turn together with the answers to it.

    Args:
        messages: A chat whose last message is not the assistant's.
        sizes: Tokens of each message.
        budget: Tokens at most.

    Returns:
        The messages that stay; None when even the least does not fit.

    Raises:
        AgenticError: There is not one size for each message.
    """
    if len(messages) != len(sizes):
        raise AgenticError(f"there must be a size for each of {len(messages)} messages, got {len(sizes)}")
    roles = [message.get("role") for message in messages]
    head = next((i for i, role in enumerate(roles) if role != "system"), len(messages))
    users = [i for i, role in enumerate(roles) if role == "user" and i >= head]
    last = users[-1] if users else len(messages) - 1
    suffixes = [*users, *(i for i, role in enumerate(roles) if role == "assistant" and i > last)]
    for start in suffixes or [last]:
        kept = [*range(head), *([last] if start > last else []), *range(start, len(messages))]
        if sum(sizes[i] for i in kept) <= budget:
            return [messages[i] for i in kept]
    return None


def fit_observation(
    tokens: Sequence[int], *, limit: int, mark: Sequence[int] = (), keep_end: float = 0.5
) -> list[int]:
    """An observation's tokens cut in the middle to a limit, with a mark in place of what is left out.

    Args:
        tokens: Of the observation.
        limit: Tokens at most, at least 1.
        mark: Tokens that say that something was cut; left out when there is no room for them.
        keep_end: Which share of what stays is taken from the end, 0..1.

    Raises:
        AgenticError: The limit or the share is out of range.
    """
    if limit < 1 or not 0 <= keep_end <= 1:
        raise AgenticError(f"a limit is at least 1 and keep_end from 0 to 1, got {limit} and {keep_end}")
    if len(tokens) <= limit:
        return list(tokens)
    room = limit - len(mark)
    if room < 0:
        return list(tokens[:limit])
    end = int(room * keep_end)
    return [*tokens[: room - end], *mark, *tokens[len(tokens) - end :]]


async def summarised(
    messages: Sequence[ChatMessage], summarise: Callable[[Sequence[ChatMessage]], Awaitable[str]]
) -> list[ChatMessage]:
    """The chat with everything between its system messages and its last message as one summary.

    Args:
        messages: A chat of at least two messages besides the system's.
        summarise: Makes the summary.

    Raises:
        AgenticError: There is nothing to summarise.
    """
    head = next((i for i, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    middle = messages[head:-1]
    if not middle:
        raise AgenticError("there is nothing to summarise between the system message and the last one")
    text = await summarise(middle)
    last = messages[-1]
    content = f"Summary of what happened before:\n{text}\n\n{last.get('content', '')}"
    return [*messages[:head], {"role": "user", "content": content}]
