"""The seam that every environment fits; `check_environment` tests an implementation.

The shape is that of Gymnasium and GEM with text for observations and actions, so their text
environments fit as they are. Methods may be plain or `async`.
"""

from collections.abc import Awaitable, Mapping
from typing import Protocol, TypeAlias

Info: TypeAlias = Mapping[str, object]
Reset: TypeAlias = tuple[str, Info]
Step: TypeAlias = tuple[str, float, bool, bool, Info]


class Environment(Protocol):
    """A world that answers a policy's actions, one episode after the other.

    Plain methods are called in a thread, always the same one for an episode, so they may block.
    """

    def reset(self, *, seed: int) -> Reset | Awaitable[Reset]:
        """Start an episode.

        Args:
            seed: At least 0; the same seed gives the same episode, whatever happened before.

        Returns:
            `(observation, info)`: the first text for the policy, and what may interest others. Keys
            of `info` that this package reads, at reset and step: `instructions` (the rules, for a
            system prompt), `tools` (schemas of callable tools), `actions` (some valid actions),
            `state` (names the state, equal in equal states), `action_is_valid`, `tool_calls` (how many
            were carried out in this step), `tool_results` (there when tools answered) and `image` (a
            picture of the state as PNG bytes).
        """
        ...

    def step(self, action: str, /) -> Step | Awaitable[Step]:
        """Answer one action.

        An action that makes no sense is answered in the observation and uses up a turn; it never
        raises. Once an episode is over, `step` raises until the next `reset`.

        Args:
            action: What the policy said.

        Returns:
            `(observation, reward, terminated, truncated, info)`: the reward of this step is finite;
            `terminated` means that the task is over by its own rules, `truncated` that it was cut
            off from outside. `info["action_is_valid"]`, where present, tells whether the action
            made sense.
        """
        ...
