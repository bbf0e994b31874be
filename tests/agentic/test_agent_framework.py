"""A real agent framework as a black box: Pydantic AI with a tool, recorded through the server."""

import json

import numpy as np
import openai
import pytest
from characters import END, Characters
from roll_agentic import Sampled, episode_rows
from roll_agentic.proxy import AgentRunner, ProxyServer, ServerLimits

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(120)]


class Engine:
    """Calls the tool first, then says what it was told."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def sample(self, prompt_ids: np.ndarray, *, max_tokens: int, seed: int) -> Sampled:
        prompt = Characters().decode(prompt_ids)
        self.prompts.append(prompt)
        call = json.dumps({"name": "multiply", "arguments": {"a": 6, "b": 7}})
        text = f"<tool_call>{call}</tool_call>" if "<tool>" not in prompt else "The answer is 42."
        ids = [*Characters().encode(text), END]
        return Sampled(
            token_ids=np.array(ids),
            logprobs=np.full(len(ids), -0.1),
            versions=((1, len(ids)),),
            finish_reason="stop",
        )


async def test_agent_of_a_framework_is_recorded_as_one_transcript() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    engine = Engine()
    limits = ServerLimits(context_tokens=4000, reply_tokens=500)
    async with ProxyServer(engine, Characters(), limits) as server:

        async def play(base_url: str, api_key: str) -> float:
            client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
            model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, system_prompt="Use the tool.")

            @agent.tool_plain
            def multiply(a: int, b: int) -> int:
                """Multiply."""
                return a * b

            async with client:
                result = await agent.run("What is 6 times 7?")
            return float("42" in result.output)

        episode = await AgentRunner(server, seconds=60.0).run_function(play, seed=0)
    assert episode.failure is None
    assert episode.total_reward == 1.0
    assert len(engine.prompts) == 2
    assert engine.prompts[1].startswith(engine.prompts[0])
    assert "<tool>42<end>" in engine.prompts[1]
    (row,) = episode_rows(episode.history)
    assert len(row.turns) == 2
