"""WebShop, the simulated shop of web_agent_site, which is on no registry: install it from its source."""

from typing import Any

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.errors import AgenticError

_INSTRUCTIONS = (
    "You shop on a web site for what the instruction asks. Say search[words] or click[a button or link]; "
    "click[buy now] ends the task."
)


class WebShop:
    """A shopping task of WebShop's text environment; the reward is its score of what was bought, 0..1.

    Args:
        environment: A `WebAgentTextEnv` that is already there, not used by anyone else; None to make one.
        max_steps: Actions until the episode is truncated, at least 1.
        **config: Passed to `WebAgentTextEnv`, such as `observation_mode="text"` and `num_products=1000`.

    Raises:
        AgenticError: web_agent_site is not installed, or an argument is out of its range.
    """

    def __init__(self, *, environment: object | None = None, max_steps: int = 15, **config: object) -> None:
        if max_steps < 1:
            raise AgenticError(f"WebShop needs max_steps of at least 1, got {max_steps}")
        self._environment: Any = environment
        if environment is None:
            try:
                from web_agent_site.envs import (  # type: ignore[import-not-found,unused-ignore]  # optional
                    WebAgentTextEnv,
                )
            except ImportError as error:
                raise AgenticError("WebShop needs the package web_agent_site from its source") from error
            self._environment = WebAgentTextEnv(**config)
        self._max_steps = max_steps
        self._left = 0

    def reset(self, *, seed: int) -> Reset:
        """Start the task whose number is the seed, within the number of goals."""
        goals = len(self._environment.server.goals)
        observation, _ = self._environment.reset(session=seed % goals)
        self._left = self._max_steps
        return str(observation), {"instructions": _INSTRUCTIONS, **self._info(is_valid=True)}

    def step(self, action: str, /) -> Step:
        """Search or click; anything that the page does not offer is answered with what it does.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._left == 0:
            raise AgenticError("WebShop has no episode going on; call reset before step")
        self._left -= 1
        said = marked_answer(action)
        if not self._is_offered(said):
            offered = ", ".join(self._offered())
            is_over = self._left == 0
            return f"The page offers: {offered}", 0.0, False, is_over, self._info(is_valid=False)
        observation, reward, done, _ = self._environment.step(said)
        truncated = not done and self._left == 0
        if done:
            self._left = 0
        return str(observation), float(reward), bool(done), truncated, self._info(is_valid=True)

    def _offered(self) -> list[str]:
        """Actions that the page offers; `search[words]` stands for any search."""
        offer = self._environment.get_available_actions()
        searches = ["search[words]"] if offer["has_search_bar"] else []
        return searches + [f"click[{name}]" for name in offer["clickables"] if name != "search"]

    def _is_offered(self, action: str) -> bool:
        if action.startswith("search[") and action.endswith("]") and len(action) > len("search[]"):
            return "search[words]" in self._offered()
        return action in self._offered()

    def _info(self, *, is_valid: bool) -> dict[str, object]:
        return {"action_is_valid": is_valid, "actions": self._offered()}
