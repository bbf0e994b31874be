"""The adapter to verifiers against the signatures of 0.4.0, which cannot be installed beside newer libraries.

Recorded: `EvalClientConfig(base_url, api_key_var, headers)`, `ModelContext(model, client)`,
`Env.run_episode(task, ctx) -> Episode(ok, errors, traces)`,
`Trace(ok, reward, metrics, errors, agent.trainable)`.
"""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import openai
import pytest
from characters import Characters
from roll_agentic import AgenticError
from roll_agentic.adapters.verifiers import verifiers_agent
from roll_agentic.proxy import AgentRunner, ProxyServer, ServerLimits
from test_proxy import Engine


@dataclass(kw_only=True)
class EvalClientConfig:
    base_url: str
    api_key_var: str = "PRIME_API_KEY"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelContext:
    model: str
    client: EvalClientConfig


class Environment:
    """Asks the model once, as one with an agent and a judge does; its key is not the session's."""

    def __init__(self, ok: bool = True) -> None:
        self.ok = ok

    async def run_episode(self, task: str, ctx: ModelContext) -> SimpleNamespace:
        async with openai.AsyncOpenAI(base_url=ctx.client.base_url, api_key="unset") as client:
            answer = await client.chat.completions.create(
                model=ctx.model,
                messages=[{"role": "user", "content": task}],
                extra_headers={"X-Session-ID": "trace-id"},
            )
        error = SimpleNamespace(type="HarnessError", message="broke")
        player = trace(len(answer.choices[0].message.content or ""), trainable=True)
        return SimpleNamespace(
            ok=self.ok, errors=[] if self.ok else [error], traces=[player, trace(99.0, trainable=False)]
        )


def trace(reward: float, *, trainable: bool) -> SimpleNamespace:
    agent = SimpleNamespace(trainable=trainable)
    return SimpleNamespace(ok=True, reward=reward, metrics={"turns": 1, "none": None}, errors=[], agent=agent)


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    v1 = ModuleType("verifiers.v1")
    v1.EvalClientConfig, v1.ModelContext = EvalClientConfig, ModelContext  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verifiers", ModuleType("verifiers"))
    monkeypatch.setitem(sys.modules, "verifiers.v1", v1)


async def test_episode_of_verifiers_is_recorded_and_judged_by_trainable_traces(verifiers: None) -> None:
    limits = ServerLimits(context_tokens=500, reply_tokens=50)
    async with ProxyServer(Engine("four"), Characters(), limits) as server:
        runner = AgentRunner(server, seconds=30.0)
        episode = await runner.run_function(verifiers_agent(Environment(), "2+2?"), seed=0)
        assert episode.failure is None
        assert episode.result is not None
        assert (episode.total_reward, episode.result.metrics) == (4.0, {"turns": 1.0})
        assert "2+2?" in Characters().decode(episode.history.current.token_ids)
        broken = await runner.run_function(verifiers_agent(Environment(ok=False), "2+2?"), seed=0)
        assert broken.failure is not None
        assert "HarnessError: broke" in broken.failure.message


def test_missing_library_is_named() -> None:
    with pytest.raises(AgenticError, match="pip install verifiers"):
        verifiers_agent(Environment(), "task")
