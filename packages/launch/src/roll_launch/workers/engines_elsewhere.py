"""Engines that do not compute in the replica's process: servers, recordings and scripts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from roll_rollout import (
    Completion,
    Engine,
    EngineCapabilities,
    EngineError,
    EngineLoad,
    GenerateRequest,
    ReplayEngine,
    SamplingParams,
    ScriptedEngine,
    WeightReceipt,
    WeightUpdate,
    capabilities_of,
    weights_checksum,
)

from roll_launch.callable_path import resolve_callable
from roll_launch.config import (
    OpenaiEngineConfig,
    ReplayEngineConfig,
    ScriptedEngineConfig,
    SglangEngineConfig,
)
from roll_launch.models import load_tokenizer
from roll_launch.roles import ActorSpec


async def start_sglang(spec: ActorSpec, config: SglangEngineConfig) -> Engine:
    """The engine before an SGLang server, once it answers.

    Raises:
        EngineError: The stage's model is new, so that no server can have been started on it.
        EngineUnavailable: The server does not answer; names its address.
    """
    from roll_rollout.sglang_engine import SGLangEngine

    if spec.model.path is None:
        raise EngineError(
            "engine sglang: the stage's model is new (model.source random), and a server is started on a "
            "model directory; allowed are pretrained and stage"
        )
    tokenizer = load_tokenizer(spec.model.tokenizer)
    engine = SGLangEngine.at(
        config.address,
        api_key=config.api_key,
        most_running=config.max_batch,
        path=spec.model.path,
        dtype=spec.model.dtype,
        files=config.files,
        decode=lambda ids: str(tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)),
        max_context=spec.max_context,
        deterministic=config.deterministic,
    )
    await _answering(engine)
    return engine


async def start_openai(spec: ActorSpec, config: OpenaiEngineConfig) -> Engine:
    """The engine before an OpenAI-compatible server, once it has drawn a token with its id and log-prob.

    Raises:
        UnsupportedRequest: The server gives no sampled ids or no log-probs, which training needs.
        EngineUnavailable: It does not answer; names its address.
    """
    from roll_rollout.openai_engine import OpenAIEngine

    tokenizer = load_tokenizer(spec.model.tokenizer)
    engine = OpenAIEngine(
        config.address,
        model=config.model,
        api_key=config.api_key,
        logprobs_of=config.logprobs_of,
        decode=lambda ids: str(tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)),
        max_context=spec.max_context,
        most_running=config.max_batch,
    )
    try:
        await engine.check_health()
        first = min(tokenizer.get_vocab().values())
        await engine.generate(
            GenerateRequest(
                id="trial", prompt_ids=np.array([first]), seed=0, sampling=SamplingParams(max_tokens=1)
            )
        )
    except EngineError:
        await engine.close()
        raise
    return FixedPolicy(engine)


def replay_engine(config: ReplayEngineConfig) -> Engine:
    """The engine that plays a recording back.

    Raises:
        EngineError: There is none, or it is broken.
    """
    return ReplayEngine(config.path)


def scripted_engine(spec: ActorSpec, config: ScriptedEngineConfig) -> Engine:
    """The engine whose tokens a function chooses.

    Raises:
        RollLaunchError: There is no such function.
    """
    script = resolve_callable(config.callable)
    tokenizer = load_tokenizer(spec.model.tokenizer)

    def respond(request: GenerateRequest) -> Iterable[int]:
        return cast("Iterable[int]", script(request))

    return ScriptedEngine(
        respond,
        decode=lambda ids: str(tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)),
        max_context=spec.max_context,
    )


class FixedPolicy:
    """An `Engine` whose weights are not those that are trained: it takes versions and nothing else.

    Its tokens carry the version that was current when they were asked for, so that the bound on staleness
    says how long they lay about; how far the server's policy is from the trained one is what the corrections
    of the algorithm are for.

    Args:
        engine: Cannot be updated.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._version = 0

    @property
    def capabilities(self) -> EngineCapabilities:
        """What requests may ask of the engine. See `DescribedEngine`."""
        return replace(
            capabilities_of(self._engine),
            weight_updates=True,
            continuation="none",
            streaming=False,
            health=False,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`."""
        version = self._version
        completion = await self._engine.generate(request)
        return replace(completion, versions=((version, len(completion)),))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests. See `Engine.abort`."""
        await self._engine.abort(request_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Takes the version. See `Engine.update_weights`."""
        self._version = update.version
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def load(self) -> EngineLoad:
        """Returns how busy the server is with requests of this engine."""
        return await self._engine.load()

    async def close(self) -> None:
        """Closes the connections. See `Engine.close`."""
        await self._engine.close()


async def _answering(engine: Engine) -> None:
    """Returns if a server answers, and lets go of it otherwise."""
    from roll_rollout import CheckedEngine

    try:
        if isinstance(engine, CheckedEngine):
            await engine.check_health()
    except EngineError:
        await engine.close()
        raise
