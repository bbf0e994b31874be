"""The two ways to SGLang: its HTTP server, and its `Engine` in this process. Written for SGLang 0.5.23.

Both take the same messages: the fields of the classes of `sglang.srt.managers.io_struct`, as JSON or as an
object. `CALLS` says which method of the server and of the engine takes which.
"""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from roll_rollout.errors import EngineError, EngineLibraryError, EngineUnavailable
from roll_rollout.http_endpoint import HttpEndpoint
from roll_rollout.releases import check_release, spelled

SUPPORTED_VERSIONS = ((0, 5, 23), (0, 6))
"""SGLang from the first of these on, and before the second; what the in-process engine checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that controls SGLang.

    Attributes:
        path: Of the HTTP server.
        message: Class in `io_struct` whose fields the body has; empty for a call without one.
        method: Of `TokenizerManager`.
        with_request: Whether that method takes an HTTP request as its second argument.
    """

    path: str
    message: str
    method: str
    with_request: bool


CALLS: dict[str, Call] = {
    "abort": Call(path="/abort_request", message="AbortReq", method="abort_request", with_request=False),
    "continue": Call(
        path="/continue_generation",
        message="ContinueGenerationReqInput",
        method="continue_generation",
        with_request=False,
    ),
    "flush": Call(path="/flush_cache", message="", method="flush_cache", with_request=False),
    "load_adapter": Call(
        path="/load_lora_adapter",
        message="LoadLoRAAdapterReqInput",
        method="load_lora_adapter",
        with_request=True,
    ),
    "pause": Call(
        path="/pause_generation",
        message="PauseGenerationReqInput",
        method="pause_generation",
        with_request=False,
    ),
    "release_memory": Call(
        path="/release_memory_occupation",
        message="ReleaseMemoryOccupationReqInput",
        method="release_memory_occupation",
        with_request=True,
    ),
    "resume_memory": Call(
        path="/resume_memory_occupation",
        message="ResumeMemoryOccupationReqInput",
        method="resume_memory_occupation",
        with_request=True,
    ),
    "unload_adapter": Call(
        path="/unload_lora_adapter",
        message="UnloadLoRAAdapterReqInput",
        method="unload_lora_adapter",
        with_request=True,
    ),
    "update_weights": Call(
        path="/update_weights_from_disk",
        message="UpdateWeightFromDiskReqInput",
        method="update_weights_from_disk",
        with_request=True,
    ),
}


class SGLangTransport(Protocol):
    """A way to SGLang."""

    def events(self, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Yields the outputs for a `GenerateReqInput`."""
        ...

    async def call(self, name: str, body: Mapping[str, Any]) -> None:
        """Makes one of `CALLS`.

        Raises:
            EngineError: SGLang says that it failed.
        """
        ...

    async def check_health(self) -> None:
        """Returns if SGLang could serve.

        Raises:
            EngineUnavailable: It could not.
        """
        ...

    async def retried(
        self, attempt: Callable[[], Awaitable[Any]], *, path: str, where: str, jitter: random.Random
    ) -> Any:
        """Returns what an attempt returns, the first that is answered."""
        ...

    async def close(self) -> None:
        """Lets go of SGLang."""
        ...


class HttpTransport:
    """SGLang's HTTP server.

    Args:
        endpoint: Where it listens.
    """

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint

    async def events(self, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yields the outputs for a request. See `SGLangTransport.events`."""
        async with aclosing(self._endpoint.events("/generate", body)) as events:
            async for event in events:
                yield event

    async def call(self, name: str, body: Mapping[str, Any]) -> None:
        """Makes one of `CALLS`. See `SGLangTransport.call`."""
        answer = await self._endpoint.post(CALLS[name].path, body, where=name)
        _require_success(name, answer)

    async def check_health(self) -> None:
        """Returns if the server answers. See `SGLangTransport.check_health`."""
        await self._endpoint.get("/health")

    async def retried(
        self, attempt: Callable[[], Awaitable[Any]], *, path: str, where: str, jitter: random.Random
    ) -> Any:
        """Returns the first answer. See `HttpEndpoint.retried`."""
        return await self._endpoint.retried(attempt, path=path, where=where, jitter=jitter)

    async def close(self) -> None:
        """Closes the connections; the server goes on."""
        await self._endpoint.close()


class InProcessTransport:
    """SGLang's `Engine` in this process; its calls are made through its `TokenizerManager`.

    Args:
        engine: `sglang.Engine`, started outside the event loop.

    Raises:
        EngineLibraryError: SGLang is missing or of another version.
    """

    def __init__(self, engine: Any) -> None:
        check_library()
        self._engine = engine
        self._manager = engine.tokenizer_manager

    async def events(self, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yields the outputs for a request. See `SGLangTransport.events`."""
        outputs = self._manager.generate_request(_message("GenerateReqInput", body), None)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def call(self, name: str, body: Mapping[str, Any]) -> None:
        """Makes one of `CALLS`. See `SGLangTransport.call`."""
        call = CALLS[name]
        method = getattr(self._manager, call.method)
        if name == "abort":
            # The one method that takes the fields themselves, and does not wait.
            method(**body)
            return
        arguments: list[Any] = [_message(call.message, body)] if call.message else []
        if call.with_request:
            arguments.append(None)
        _require_success(name, await method(*arguments))

    async def check_health(self) -> None:
        """Returns while SGLang's processes are alive. See `SGLangTransport.check_health`."""
        if self._manager.gracefully_exit:
            raise EngineUnavailable("check_health: SGLang is on its way out")

    async def retried(
        self, attempt: Callable[[], Awaitable[Any]], *, path: str, where: str, jitter: random.Random
    ) -> Any:
        """Returns what the one attempt returns: nothing between here and there can fail for a while."""
        try:
            return await attempt()
        except ValueError as error:
            raise EngineError(f"{where}: SGLang refused it: {error}") from error

    async def close(self) -> None:
        """Stops SGLang's processes."""
        self._engine.shutdown()


def check_library() -> None:
    """Returns if SGLang is installed in a version that this adapter was written for.

    Raises:
        EngineLibraryError: It is not; names both.
    """
    allowed = spelled(SUPPORTED_VERSIONS)
    try:
        from sglang.version import __version__
    except ImportError as error:
        install = 'pip install "roll-rollout[sglang]"'
        raise EngineLibraryError(
            f"the SGLang engine in process needs SGLang {allowed} ({install}); importing it failed: {error}"
        ) from error
    check_release("SGLang", __version__, SUPPORTED_VERSIONS)


def _message(name: str, body: Mapping[str, Any]) -> Any:
    from sglang.srt.managers import io_struct

    return getattr(io_struct, name)(**body)


def _require_success(name: str, answer: Any) -> None:
    """Raises what a call says went wrong: a tuple or an object or JSON with `success`, as the call has it."""
    success, message = True, ""
    if isinstance(answer, tuple):
        success, message = bool(answer[0]), str(answer[1])
    elif isinstance(answer, dict):
        success = bool(answer.get("success", True))
        message = str(answer.get("message") or answer.get("error_message") or answer)
    elif answer is not None and hasattr(answer, "success"):
        success, message = bool(answer.success), str(answer)
    if not success:
        raise EngineError(f"SGLang: {name} failed: {message}")
