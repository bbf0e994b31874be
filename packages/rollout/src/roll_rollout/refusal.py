"""What every engine refuses alike: requests for what it does not have. Called by engines."""

from collections.abc import Collection

from roll_rollout.capabilities import EngineCapabilities
from roll_rollout.errors import EngineError, PromptTooLong, SamplingError, UnsupportedRequest
from roll_rollout.request import GenerateRequest


def refuse_unsupported(
    request: GenerateRequest,
    capabilities: EngineCapabilities,
    *,
    adapters: Collection[str],
    max_context: int | None,
) -> int:
    """Returns how many tokens the completion may have, those of a partial one included.

    Args:
        request: To be checked.
        capabilities: Of the engine.
        adapters: Names of the loaded adapters.
        max_context: Most tokens of prompt and completion; None is unlimited.

    Raises:
        SamplingError: It has stop strings, and the engine honours none.
        UnsupportedRequest: It asks for an unknown adapter, or for media, routed experts or a continuation
            that the engine does not offer.
        PromptTooLong: Prompt and partial completion leave no room in the context.
    """
    where = f"request {request.id!r}"
    if request.sampling.stop and not capabilities.stop_strings:
        raise SamplingError(
            f"{where}: stop strings {request.sampling.stop} need an engine with a tokenizer (or `decode`)"
        )
    if request.adapter is not None and request.adapter not in adapters:
        loaded = f"loaded are {sorted(adapters)}" if capabilities.adapters else "this engine takes none"
        raise UnsupportedRequest(f"{where}: adapter {request.adapter!r} is unknown, {loaded}")
    for media in request.media:
        if media.kind not in capabilities.media:
            allowed = f"allowed are {list(capabilities.media)}" if capabilities.media else "it takes no media"
            raise UnsupportedRequest(f"{where}: media of kind {media.kind!r} for this engine, {allowed}")
    if request.routed_experts and not capabilities.routed_experts:
        raise UnsupportedRequest(f"{where}: this engine does not tell which experts tokens were routed to")
    if request.partial is not None and capabilities.continuation == "none":
        raise UnsupportedRequest(f"{where}: this engine cannot go on from a partial completion")
    return _room(request, where, max_context)


def refuse_unknown_tokens(request: GenerateRequest, *, vocabulary: int) -> None:
    """Refuses ids that the model has no embedding for.

    Raises:
        EngineError: Names the largest id.
    """
    largest = int(request.context_ids.max())
    if largest >= vocabulary:
        raise EngineError(
            f"request {request.id!r}: prompt id {largest} is outside the vocabulary of {vocabulary}"
        )


def _room(request: GenerateRequest, where: str, max_context: int | None) -> int:
    prompt, started = len(request.prompt_ids), len(request.context_ids) - len(request.prompt_ids)
    most = request.sampling.max_tokens
    if started >= most:
        raise SamplingError(f"{where}: max_tokens is {most}, its partial completion has {started} already")
    if max_context is None:
        return most
    if prompt + started >= max_context:
        raise PromptTooLong(
            f"{where}: the prompt has {prompt + started} tokens, "
            f"allowed is {max_context - 1} in a context of {max_context}"
        )
    return min(most, max_context - prompt)
