"""The server: an engine behind OpenAI's interface, for agents that only know a `base_url`.

Needs the extra `proxy` (aiohttp). Sampling parameters belong to the trainer: an agent's temperature and
top_p are not obeyed, since log-probs are recorded of the distribution that the policy is trained with.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from roll_agentic.chat import ChatTokenizer
from roll_agentic.chat_policy import Sampled, TokenEngine, turn_seed
from roll_agentic.errors import AgenticError, TranscriptError
from roll_agentic.proxy.reply import (
    Reply,
    chat_completion,
    chat_pieces,
    error_body,
    response,
    response_pieces,
)
from roll_agentic.proxy.request import BadRequest, ChatRequest, chat_request, responses_request
from roll_agentic.proxy.session import Session, SessionBook, SessionClosed, UnknownSession
from roll_agentic.segment import Segment
from roll_agentic.stop import cut_at_stop
from roll_agentic.tools.call import CallParser, parse_hermes

if TYPE_CHECKING:
    from aiohttp import web

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of the server.

    Example: `ServerLimits(context_tokens=8192, reply_tokens=1024)`.

    Attributes:
        context_tokens: Prompt and reply together, at least 2.
        reply_tokens: Tokens of a reply at most, whatever the agent wants, at least 1.
        body_bytes: Largest request body, at least 1; a larger one is refused (413).
        concurrent: Calls that are sampled at a time, at least 1.
        waiting: Calls that may wait for that, at least 0; one more is refused (429).
        call_s: Seconds of a call, waiting included, above 0; one that takes longer is given up (504).

    Raises:
        AgenticError: A bound is out of its range.
    """

    context_tokens: int
    reply_tokens: int
    body_bytes: int = 4 * 1024 * 1024
    concurrent: int = 256
    waiting: int = 4096
    call_s: float = 600.0

    def __post_init__(self) -> None:
        sizes = min(self.context_tokens - 1, self.reply_tokens, self.body_bytes, self.concurrent)
        if sizes < 1 or self.waiting < 0 or not self.call_s > 0:
            raise AgenticError(f"bounds of the server are above 0 and context_tokens at least 2, got {self}")


class ProxyServer:
    """Serves `/v1/chat/completions`, `/v1/responses`, `/v1/models` and `/health`.

    The session is that of the address (`session_url`), else of the API key (`Authorization: Bearer KEY`),
    else of the header `X-Session-Id`. Its errors are
    in OpenAI's form: 400 for a request that cannot be served or leaves no room in the context, 401 for an
    unknown session, 410 for one that is over, 413, 429, 500 when the engine broke, 504.

    Args:
        engine: Samples.
        chat: Template and tokenizer.
        limits: Bounds.
        parser: Finds calls of tools in what was sampled, for requests that name tools.
        model: The one name that `/v1/models` lists; requests may give any.
    """

    def __init__(
        self,
        engine: TokenEngine,
        chat: ChatTokenizer,
        limits: ServerLimits,
        *,
        parser: CallParser = parse_hermes,
        model: str = "policy",
    ) -> None:
        self.sessions = SessionBook()
        self._engine, self._chat, self._limits, self._parser, self._model = (
            engine,
            chat,
            limits,
            parser,
            model,
        )
        self._gate = asyncio.Semaphore(limits.concurrent)
        self._inside = 0
        self._runner: web.AppRunner | None = None
        self._base_url = ""

    @property
    def base_url(self) -> str:
        """What agents are given, such as `http://127.0.0.1:8123/v1`.

        Raises:
            AgenticError: The server is not running.
        """
        if not self._base_url:
            raise AgenticError("the server is not running; call start first")
        return self._base_url

    def session_url(self, key: str) -> str:
        """A `base_url` that names the session itself, for agents that send keys and headers of their own.

        Raises:
            AgenticError: The server is not running.
        """
        return f"{self.base_url.removesuffix('/v1')}/session/{quote(key, safe='')}/v1"

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen.

        Args:
            host: Address to listen at.
            port: 0 for a free one.

        Raises:
            AgenticError: aiohttp is not installed, or the server runs already.
            OSError: The address cannot be had.
        """
        try:
            from aiohttp import web
        except ImportError as error:
            raise AgenticError("the server needs aiohttp: pip install 'roll-agentic[proxy]'") from error
        if self._runner is not None:
            raise AgenticError("the server is running already")
        app = web.Application(client_max_size=self._limits.body_bytes)
        for place in ("/v1", "/session/{key}/v1"):
            app.router.add_post(f"{place}/chat/completions", self._chat_completions)
            app.router.add_post(f"{place}/responses", self._responses)
            app.router.add_get(f"{place}/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound = self._runner.addresses[0][1]
        self._base_url = f"http://{host}:{bound}/v1"

    async def close(self) -> None:
        """Stop listening and give up the calls that go on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner, self._base_url = None, ""

    async def __aenter__(self) -> "ProxyServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _chat_completions(self, request: "web.Request") -> "web.StreamResponse":
        def pieces(reply: Reply, asked: ChatRequest) -> Iterator[str]:
            return chat_pieces(reply, usage=asked.stream_usage)

        return await self._answer(request, chat_request, chat_completion, pieces)

    async def _responses(self, request: "web.Request") -> "web.StreamResponse":
        return await self._answer(
            request, responses_request, response, lambda reply, _: response_pieces(reply)
        )

    async def _models(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "roll"}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        return web.json_response({"status": "ok", "sessions": len(self.sessions), "calls": self._inside})

    async def _answer(
        self,
        request: "web.Request",
        parse: Callable[[object], ChatRequest],
        whole: Callable[[Reply], dict[str, object]],
        pieces: Callable[[Reply, ChatRequest], Iterator[str]],
    ) -> "web.StreamResponse":
        """Answer a call, whatever happens, in OpenAI's form."""
        from aiohttp import web

        try:
            session = self._session(request)
            asked = parse(await _json(request))
            reply = await self._bounded(lambda: self._reply(session, asked))
        except AgenticError as error:
            status, code = _status(error)
            if status >= 500:
                _log.warning("a call failed: %s", error)
            kind = "invalid_request_error" if status < 500 else "server_error"
            return web.json_response(error_body(str(error), kind=kind, code=code), status=status)
        if not asked.stream:
            return web.json_response(whole(reply))
        stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await stream.prepare(request)
        for piece in pieces(reply, asked):
            await stream.write(piece.encode())
        await stream.write_eof()
        return stream

    def _session(self, request: "web.Request") -> Session:
        """The session of a request.

        Raises:
            UnknownSession: None of its keys belongs to one.
        """
        for key in _keys(request):
            with contextlib.suppress(UnknownSession):
                return self.sessions.find(key)
        raise UnknownSession("no session has this key")

    async def _bounded(self, work: Callable[[], Awaitable[Reply]]) -> Reply:
        """Do one call's work within the limits of concurrency and time.

        Raises:
            TooBusy: Too many calls wait.
            CallTimedOut: It took too long.
            EngineBroke: The engine raised.
        """
        if self._inside >= self._limits.concurrent + self._limits.waiting:
            raise TooBusy("too many calls are waiting")
        self._inside += 1
        try:
            async with asyncio.timeout(self._limits.call_s), self._gate:
                return await work()
        except TimeoutError as error:
            raise CallTimedOut(f"no reply within {self._limits.call_s:g} s") from error
        except AgenticError:
            raise
        except Exception as error:
            # Boundary to foreign code: an engine may raise anything.
            raise EngineBroke(f"the engine failed: {type(error).__name__}: {error}") from error
        finally:
            self._inside -= 1

    async def _reply(self, session: Session, asked: ChatRequest) -> Reply:
        number = session.begin()
        prompt = session.prepare(self._chat, asked.messages, asked.tools)
        room = self._limits.context_tokens - len(prompt.ids)
        if room < 1:
            raise ContextExceeded(
                f"the prompt has {len(prompt.ids)} tokens and leaves no room for a reply; "
                f"the context is {self._limits.context_tokens}"
            )
        most = min(room, self._limits.reply_tokens, asked.max_tokens or room)
        sampled = await self._engine.sample(
            prompt.ids, max_tokens=most, seed=turn_seed(session.seed, 0, number)
        )
        if sampled.finish_reason == "abort":
            raise EngineBroke("the engine gave the call up")
        sampled, text = self._cut(sampled, asked.stops)
        parsed = self._parser(text) if asked.tools and sampled.finish_reason == "stop" else None
        is_call = parsed is not None and bool(parsed.calls) and not parsed.mistakes
        calls = parsed.calls if parsed is not None and is_call else ()
        reply = Reply(
            model=asked.model,
            text=parsed.text if parsed is not None and is_call else text,
            # Unique over the whole chat, since agents match results with calls by them.
            calls=tuple(replace(call, id=f"call_{uuid.uuid4().hex[:24]}") for call in calls),
            finish_reason="tool_calls" if is_call else sampled.finish_reason,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(sampled.token_ids),
        )
        session.record(prompt, sampled, messages=asked.messages, reply=reply.message, tools=asked.tools)
        return reply

    def _cut(self, sampled: Sampled, stops: tuple[str, ...]) -> tuple[Sampled, str]:
        """What was sampled and its text without the end token, cut at a stop sequence."""
        ids = np.asarray(sampled.token_ids).tolist()
        said = ids[:-1] if ids and ids[-1] == self._chat.end_token_id else ids
        text = self._chat.decode(said)
        if not any(stop in text for stop in stops):
            return sampled, text
        texts = [self._chat.decode(said[: end + 1]) for end in range(len(said))]
        cut = cut_at_stop([new[len(old) :] for old, new in zip(["", *texts], texts, strict=False)], stops)
        segment = Segment(
            source="sampled",
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
            finish_reason=sampled.finish_reason,
        ).head(cut.tokens)
        kept = Sampled(
            token_ids=segment.token_ids,
            logprobs=segment.logprobs,
            versions=segment.versions,
            finish_reason="stop",
        )
        return kept, cut.text


class ContextExceeded(AgenticError):
    """A prompt that leaves no room for a reply."""


class TooBusy(AgenticError):
    """Too many calls wait."""


class CallTimedOut(AgenticError):
    """A call took too long."""


class EngineBroke(AgenticError):
    """The engine failed or gave a call up."""


class BodyTooLarge(AgenticError):
    """A request body beyond the limit."""


def _status(error: AgenticError) -> tuple[int, str]:
    """HTTP status and code of an error."""
    kinds: tuple[tuple[type[AgenticError], int, str], ...] = (
        (ContextExceeded, 400, "context_length_exceeded"),
        (BadRequest, 400, "bad_request"),
        (UnknownSession, 401, "invalid_api_key"),
        (SessionClosed, 410, "session_closed"),
        (BodyTooLarge, 413, "request_too_large"),
        (TooBusy, 429, "too_busy"),
        (CallTimedOut, 504, "timed_out"),
        (EngineBroke, 500, "engine_failed"),
        (TranscriptError, 500, "template_failed"),
    )
    return next(((status, code) for kind, status, code in kinds if isinstance(error, kind)), (500, "failed"))


def _keys(request: "web.Request") -> list[str]:
    """The keys that a request may mean. The header comes last, since other routers use it as well."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    named = (request.match_info.get("key", ""), bearer, request.headers.get("X-Session-Id", ""))
    return [key for key in named if key]


async def _json(request: "web.Request") -> object:
    """The body of a request.

    Raises:
        BadRequest: It is not JSON.
        BodyTooLarge: It is beyond the limit.
    """
    from aiohttp import web

    try:
        return await request.json()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge("the body of the request is too large") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
