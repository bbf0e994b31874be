"""The environments of a worker, with the tools that they offer."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from roll_agentic import (
    AgenticError,
    Environment,
    EnvironmentPool,
    InlineEnvironment,
    ProcessEnvironment,
    make,
    option_names,
)
from roll_agentic.tools import PythonTool, Tool, Toolbox, ToolEnvironment, mcp_tools

from roll_launch.callable_path import resolve_callable
from roll_launch.config import (
    EnvironmentConfig,
    FunctionToolConfig,
    PythonToolConfig,
    ToolConfig,
    ToolsConfig,
)
from roll_launch.workers.sandbox import ToolSandbox

SANDBOXES = 2
"""Programs at the same time in environments that run some by themselves."""


class WorkerEnvironments:
    """Pools of environments by title; made at first use, closed together."""

    def __init__(self, configs: Sequence[EnvironmentConfig]) -> None:
        self._configs = {config.title: config for config in configs}
        self._pools: dict[str, EnvironmentPool] = {}
        self._closing = AsyncExitStack()

    async def start(self) -> None:
        """Connects to what tools need.

        Raises:
            AgenticError: A tool or an option is wrong, or a server cannot be reached.
            CallablePathError: A function cannot be found.
        """
        for title, config in self._configs.items():
            toolbox = None if config.tools is None else await self._toolbox(config.tools)
            pool = EnvironmentPool(self._maker(config, toolbox), size=config.concurrency)
            self._closing.push_async_callback(pool.close)
            self._pools[title] = pool

    def pool(self, title: str) -> EnvironmentPool:
        """The environments of a title.

        Raises:
            AgenticError: There is none of this title.
        """
        if title not in self._pools:
            raise AgenticError(f"no environment {title!r}; there are {', '.join(self._pools)}")
        return self._pools[title]

    async def close(self) -> None:
        """Closes environments and connections."""
        await self._closing.aclose()

    def _maker(self, config: EnvironmentConfig, toolbox: Toolbox | None) -> "_Maker":
        options = dict(config.options)
        if config.isolation != "process" and "sandbox" in option_names(config.name):
            options.setdefault("sandbox", self._sandbox(SANDBOXES))
        return _Maker(config, options, toolbox)

    async def _toolbox(self, config: ToolsConfig) -> Toolbox:
        tools: list[Tool] = []
        functions = []
        for offered in config.offered:
            if isinstance(offered, FunctionToolConfig):
                functions.append(resolve_callable(offered.callable))
            else:
                tools += await self._tools(offered)
        return Toolbox([*tools, *functions], deadline_s=config.deadline_s)

    async def _tools(self, config: ToolConfig) -> list[Tool]:
        if isinstance(config, PythonToolConfig):
            return [PythonTool(self._sandbox(config.sandboxes), seconds=config.seconds)]
        if isinstance(config, FunctionToolConfig):
            return []
        server = config.url if config.url is not None else list(config.command)
        return [*await self._closing.enter_async_context(mcp_tools(server))]

    def _sandbox(self, sandboxes: int) -> ToolSandbox:
        sandbox = ToolSandbox(sandboxes=sandboxes)
        self._closing.push_async_callback(sandbox.close)
        return sandbox


class _Maker:
    """Makes environments of one configuration."""

    def __init__(
        self, config: EnvironmentConfig, options: dict[str, object], toolbox: Toolbox | None
    ) -> None:
        self._config = config
        self._options = options
        self._toolbox = toolbox

    def __call__(self) -> Environment:
        config, environment = self._config, self._environment()
        if self._toolbox is None or config.tools is None:
            return environment
        return ToolEnvironment(
            environment,
            self._toolbox,
            parser=config.tools.parser,
            budget=config.tools.calls,
            mistake_reward=config.tools.mistake_reward,
        )

    def _environment(self) -> Environment:
        config = self._config
        if config.isolation == "process":
            return ProcessEnvironment(config.name, **self._options)  # type: ignore[arg-type]  # options are JSON
        environment = make(config.name, **self._options)
        return InlineEnvironment(environment) if config.isolation == "none" else environment
