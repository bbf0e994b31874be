"""Tools of servers that speak the Model Context Protocol. Needs the extra `mcp` (the official SDK)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from roll_agentic.errors import AgenticError
from roll_agentic.tools.schema import ToolSchema
from roll_agentic.tools.toolbox import ToolUnavailable

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

# Codes of JSON-RPC errors that the SDK itself raises for a lost connection and a request without answer.
_BROKEN = (-32000, -32001)
_LEAVE_S = 5.0


class McpConnection:
    """A connection that lives in a task of its own, so that its end cancels nobody but itself.

    Args:
        client: Not yet open.
        shown: The server's address, for messages.
    """

    def __init__(self, client: "Client", shown: str) -> None:
        self.shown = shown
        self._client = client
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    async def open(self, *, within_s: float) -> None:
        """Wait until it is there.

        Raises:
            ToolUnavailable: The server cannot be reached in time.
        """
        finished, _ = await asyncio.wait({self._ready, self._task}, timeout=within_s,
                                         return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        if self._ready not in finished:
            await self.close()
            why = f"no connection within {within_s:g} s" if not finished else self._why()
            raise ToolUnavailable(f"MCP server {self.shown!r}: {why}")

    async def ask(self, work: Callable[["Client"], Awaitable[T]]) -> T:
        """What a request answers.

        Raises:
            MCPError: The server answers with an error.
            ToolUnavailable: The connection broke.
        """
        from mcp import MCPError

        if self._task.done():
            raise ToolUnavailable(f"MCP server {self.shown!r}: {self._why()}")
        request = asyncio.ensure_future(work(self._client))
        try:
            await asyncio.wait({request, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ToolUnavailable(f"MCP server {self.shown!r}: {self._why()}")
            return request.result()
        except (MCPError, ToolUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:
            # Boundary to the SDK: whatever a broken connection raises, it is not the model's doing.
            raise ToolUnavailable(f"MCP server {self.shown!r}: {type(error).__name__}: {error}") from error
        finally:
            request.cancel()

    async def close(self) -> None:
        """Leave, and wait a little for the server to go."""
        self._leave.set()
        await asyncio.wait({self._task}, timeout=_LEAVE_S)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=_LEAVE_S)

    async def _live(self) -> None:
        async with self._client:
            self._ready.set_result(None)
            await self._leave.wait()

    def _why(self) -> str:
        """Why the connection is no more."""
        if self._task.cancelled() or self._task.exception() is None:
            return "the connection was closed"
        error = self._task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}"


class McpTool:
    """One tool of a connected server; made by `mcp_tools`.

    Args:
        connection: The connection.
        name: Name of the tool at the server.
        description: For the model.
        parameters: JSON schema of its arguments.
    """

    def __init__(
        self, connection: McpConnection, *, name: str, description: str, parameters: Mapping[str, object]
    ) -> None:
        self._connection = connection
        self._name = name
        self._schema: ToolSchema = {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": dict(parameters)},
        }

    @property
    def schema(self) -> ToolSchema:
        """The server's schema in OpenAI's form."""
        return self._schema

    async def call(self, arguments: Mapping[str, object]) -> str:
        """The text of the result.

        Raises:
            AgenticError: The tool answered with an error, which is for the model to read.
            ToolUnavailable: The connection or the server broke.
        """
        from mcp import MCPError

        try:
            result = await self._connection.ask(lambda client: client.call_tool(self._name, dict(arguments)))
        except MCPError as error:
            if error.code in _BROKEN:
                raise ToolUnavailable(f"MCP server {self._connection.shown!r}: {error}") from error
            raise AgenticError(str(error)) from error
        text = "\n".join(_content_text(item) for item in result.content)
        if result.is_error:
            raise AgenticError(text or "the tool failed and said nothing")
        return text or "(no output)"


@asynccontextmanager
async def mcp_tools(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    names: Sequence[str] = (),
    connect_s: float = 30.0,
) -> AsyncIterator[list[McpTool]]:
    """The tools of a server while the context is open.

    Args:
        server: URL of a server that speaks streamable HTTP, or the command line of one that speaks
            over stdio, which is started and ended with the context.
        env: Environment variables of such a command, besides a few harmless ones.
        names: Which tools to take, in this order; with none, all of them.
        connect_s: Seconds for the connection, and again for the list of tools.

    Raises:
        AgenticError: The SDK is not installed, or the server has no tool of a name.
        ToolUnavailable: The server cannot be reached in time.
    """
    try:
        from mcp import Client, StdioServerParameters, stdio_client
    except ImportError as error:
        raise AgenticError("MCP tools need the SDK: pip install 'roll-agentic[mcp]'") from error
    if isinstance(server, str):
        client = Client(server)
    else:
        command, *arguments = server
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(env or {}))
        client = Client(stdio_client(parameters))
    shown = server if isinstance(server, str) else " ".join(server)
    connection = McpConnection(client, shown)
    try:
        await connection.open(within_s=connect_s)
        async with asyncio.timeout(connect_s):
            listed = (await connection.ask(lambda client: client.list_tools())).tools
        tools = {
            tool.name: McpTool(
                connection, name=tool.name, description=tool.description or "", parameters=tool.input_schema
            )
            for tool in listed
        }
        if unknown := [name for name in names if name not in tools]:
            raise AgenticError(f"MCP server {shown!r} has no tool {unknown}; it has {', '.join(tools)}")
        yield [tools[name] for name in names or tools]
    except TimeoutError as error:
        raise ToolUnavailable(f"MCP server {shown!r}: no list of tools within {connect_s:g} s") from error
    finally:
        await connection.close()


def _content_text(item: object) -> str:
    """A piece of a result as text; pictures and sounds are named, not shown."""
    text = getattr(item, "text", None)
    return text if isinstance(text, str) else f"[{getattr(item, 'type', type(item).__name__)}]"
