"""Environments of verifiers (0.4) as agents of the server: they drive the model themselves.

verifiers is no extra of this package, since it pins versions of its own; install it by itself.
"""

from typing import Any
from urllib.parse import quote

from roll_agentic.errors import AgenticError
from roll_agentic.proxy.agent import AgentFunction, AgentResult


def verifiers_agent(environment: Any, task: Any, *, model: str = "policy") -> AgentFunction:
    """One task of a verifiers environment, for `AgentRunner.run_function`.

    The reward is the sum of the rewards of the traces that are trainable; metrics are those of all traces,
    later ones over earlier ones of the same name.

    Args:
        environment: A `verifiers.v1.Env` within its `serving()`.
        task: One of its taskset's tasks.
        model: Name that the model is asked for by.

    Raises:
        AgenticError: verifiers is not installed.
    """
    try:
        from verifiers.v1 import (  # type: ignore[import-not-found,unused-ignore]  # optional
            EvalClientConfig,
            ModelContext,
        )
    except ImportError as error:
        raise AgenticError("verifiers' environments need verifiers 0.4: pip install verifiers") from error

    async def play(base_url: str, api_key: str) -> AgentResult:
        # Its client takes the key from an environment variable and sends a session id of its own.
        address = f"{base_url.removesuffix('/v1')}/session/{quote(api_key, safe='')}/v1"
        client = EvalClientConfig(base_url=address, api_key_var="ROLL_SESSION_KEY")
        episode = await environment.run_episode(task, ModelContext(model=model, client=client))
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            told = "; ".join(f"{error.type}: {error.message}" for error in errors)
            raise AgenticError(f"the verifiers episode is not valid: {told or 'no reason given'}")
        metrics = {
            name: float(value)
            for trace in episode.traces
            for name, value in trace.metrics.items()
            if value is not None
        }
        trained = [trace for trace in episode.traces if trace.agent.trainable]
        return AgentResult(reward=float(sum(trace.reward for trace in trained)), metrics=metrics)

    return play
