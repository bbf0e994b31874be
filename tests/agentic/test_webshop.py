"""The adapter to WebShop against the recorded signature of `WebAgentTextEnv`: four-tuples and offers."""

from types import SimpleNamespace

import pytest
from roll_agentic import AgenticError, ScriptedPolicy, check_environment, make, run_episode
from roll_agentic.adapters import WebShop


class WebAgentTextEnv:
    """A shop with one page of results; buying the goal's item scores 1, any other 0.5."""

    def __init__(self) -> None:
        self.server = SimpleNamespace(goals=["red cup", "blue cup", "green cup"])

    def reset(self, session: int | None = None, instruction_text: str | None = None) -> tuple:
        self.goal, self.page, self.item = self.server.goals[session], "search", ""
        return f"Instruction: buy a {self.goal}", None

    def get_available_actions(self) -> dict:
        pages = {"search": ["search"], "results": self.server.goals, "item": ["buy now"], "end": []}
        return {"has_search_bar": self.page == "search", "clickables": pages[self.page]}

    def step(self, action: str) -> tuple:
        if action.startswith("search["):
            self.page = "results"
        elif action == "click[buy now]":
            self.page = "end"
            return "Thank you", 1.0 if self.item == self.goal else 0.5, True, None
        else:
            self.item, self.page = action[len("click[") : -1], "item"
        return f"page {self.page}", 0.0, False, None


async def test_goal_is_bought_and_what_is_not_offered_is_answered() -> None:
    shop = WebShop(environment=WebAgentTextEnv())
    said = [
        "click[buy now]",
        "search[]",
        "<answer>search[cups]</answer>",
        "click[blue cup]",
        "click[buy now]",
    ]
    episode = await run_episode(shop, ScriptedPolicy(said), seed=4, max_turns=9)
    assert (episode.status, episode.total_reward, episode.invalid_actions) == ("done", 1.0, 2)
    assert episode.messages[0].text == "Instruction: buy a blue cup"
    assert episode.messages[2].text == "The page offers: search[words]"


async def test_shop_keeps_its_promises() -> None:
    results = await check_environment(
        lambda: WebShop(environment=WebAgentTextEnv()),
        actions=["search[cup]", "click[red cup]", "click[buy now]"],
        max_steps=40,
    )
    assert [result for result in results if not result.passed] == []


def test_missing_package_and_bad_limits_are_named() -> None:
    with pytest.raises(AgenticError, match="web_agent_site"):
        make("webshop")
    with pytest.raises(AgenticError, match="max_steps of at least 1"):
        WebShop(environment=WebAgentTextEnv(), max_steps=0)
