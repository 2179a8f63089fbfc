"""MCP server over standard input and output, with the official SDK."""

from __future__ import annotations

from functools import wraps
from inspect import getdoc
from typing import TYPE_CHECKING, Any

from traceq import __version__
from traceq.agent.tools import Tools
from traceq.errors import TraceqError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ABOUT = (
    "traceq reads recordings of PyTorch programs on GPUs. Call lint first; explain has"
    " all of one finding. Nothing is written."
)


def build(folders: Sequence[Path], *, allow_run: bool = False) -> Any:  # noqa: ANN401 - an extra
    """Return the server, which is not started.

    Raises:
        UsageError: The SDK is not installed.

    """
    try:
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - an extra
        from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415
    except ImportError:
        msg = "the MCP server needs its SDK: pip install 'torch-traceq[mcp]'"
        raise UsageError(msg) from None
    tools = Tools(folders, allow_run=allow_run)
    server = MCPServer(
        "traceq", version=__version__, instructions=_ABOUT, log_level="ERROR"
    )
    offered: dict[str, Callable[..., str]] = {
        "lint": tools.lint,
        "explain": tools.explain,
        "diff": tools.diff,
        "query": tools.query,
        "memory": tools.memory,
    }
    if allow_run:
        offered["try"] = tools.try_remedy
    for name, function in offered.items():
        tool = server.tool(name, description=getdoc(function), structured_output=False)
        tool(_safe(function, ToolError))
    return server


def _safe(function: Callable[..., str], refused: type[Exception]) -> Callable[..., str]:
    """Return a tool whose errors are answers of one sentence."""

    @wraps(function)
    def call(*arguments: object, **options: object) -> str:
        try:
            return function(*arguments, **options)
        except TraceqError as error:
            raise refused(str(error)) from None

    return call
