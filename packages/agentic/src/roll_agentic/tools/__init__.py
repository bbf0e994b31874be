"""Tools that a policy may call: schemas, parsers of calls, toolboxes, tools in front of an environment."""

from roll_agentic.tools.call import (
    PARSERS,
    CallParser,
    ParsedResponse,
    ToolCall,
    call_parser,
    parse_hermes,
    parse_openai,
    parse_python_blocks,
    parse_pythonic,
    parse_qwen_coder,
    parse_xml,
)
from roll_agentic.tools.environment import ToolEnvironment
from roll_agentic.tools.mcp import McpTool, mcp_tools
from roll_agentic.tools.python import ProgramResult, PythonTool, Sandbox
from roll_agentic.tools.schema import ToolSchema, argument_problem, function_schema, schema_problem
from roll_agentic.tools.search import Bm25Index, Hit, Passage, SearchTool
from roll_agentic.tools.toolbox import FunctionTool, Tool, Toolbox, ToolResult, ToolUnavailable

__all__ = [
    "PARSERS",
    "Bm25Index",
    "CallParser",
    "FunctionTool",
    "Hit",
    "McpTool",
    "ParsedResponse",
    "Passage",
    "ProgramResult",
    "PythonTool",
    "Sandbox",
    "SearchTool",
    "Tool",
    "ToolCall",
    "ToolEnvironment",
    "ToolResult",
    "ToolSchema",
    "ToolUnavailable",
    "Toolbox",
    "argument_problem",
    "call_parser",
    "function_schema",
    "mcp_tools",
    "parse_hermes",
    "parse_openai",
    "parse_python_blocks",
    "parse_pythonic",
    "parse_qwen_coder",
    "parse_xml",
    "schema_problem",
]
