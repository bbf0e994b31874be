"""The MCP client against a real server of the official SDK, over both transports."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

import pytest
from roll_agentic import AgenticError
from roll_agentic.tools import Toolbox, ToolCall, ToolUnavailable, mcp_tools, schema_problem

SERVER = str(Path(__file__).parent / "mcp_server.py")
STDIO = [sys.executable, "-W", "ignore", SERVER, "stdio"]
pytestmark = pytest.mark.timeout(120)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id="1")


@contextlib.asynccontextmanager
async def http_server():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", SERVER, "http", str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await writer.wait_closed()
                break
            await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


async def uses(server) -> None:
    async with mcp_tools(server, connect_s=90.0) as tools:
        box = Toolbox(tools, deadline_s=60.0)
        assert box.names == ("add", "fail")
        assert all(schema_problem(schema) == "" for schema in box.schemas)
        results = await box.call_all(
            [call("add", a=2, b=3), call("fail", reason="tired"), call("add", a="x", b=1)]
        )
        assert (results[0].text, results[0].is_error) == ("5", False)
        assert results[1].is_error
        assert "tired" in results[1].text
        assert results[2].text == "Error: argument a must be integer, got 'x'"


async def test_tools_of_a_server_over_stdio() -> None:
    await uses(STDIO)


async def test_tools_of_a_server_over_http() -> None:
    async with http_server() as url:
        await uses(url)
        with pytest.raises(AgenticError, match=r"no tool \['sub'\]; it has add, fail"):
            async with mcp_tools(url, names=["sub"], connect_s=90.0):
                pass


@pytest.mark.slow
async def test_server_that_goes_away_is_unavailable() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with http_server() as url:
            (add,) = await stack.enter_async_context(mcp_tools(url, names=["add"], connect_s=90.0))
            assert await add.call({"a": 1, "b": 2}) == "3"
        with pytest.raises(ToolUnavailable, match="MCP server 'http"):
            await asyncio.wait_for(add.call({"a": 1, "b": 2}), 30.0)


async def test_unreachable_server_is_named() -> None:
    with pytest.raises(ToolUnavailable, match="MCP server"):
        async with mcp_tools("http://127.0.0.1:9/mcp", connect_s=20.0):
            pass
