"""`traceq agent`: a guide, a skill and a server for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.cli import output
from traceq.common.safe_text import printable
from traceq.errors import UsageError


def guide() -> None:
    """Print one screen on working with traceq, from recording to proof."""
    from traceq.agent.skill_files import guide as text

    output.write(text())


def install(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of skills; a folder traceq is made in it.", metavar="DIR"
        ),
    ] = Path(".claude/skills"),
) -> None:
    """Write a skill for coding agents; a file that differs is never overwritten."""
    from traceq.agent.skill_files import FOLDER, skill
    from traceq.common.atomic_files import write_folder

    place, contents = folder / FOLDER, skill()
    for name, content in contents.items():
        file = place / name
        if file.exists() and (not file.is_file() or file.read_bytes() != content):
            msg = f"{file} exists, and is another: remove it first"
            raise UsageError(msg)
    write_folder(place, contents)
    output.write(printable(f"{place / 'SKILL.md'}: written\n".rstrip()) + "\n")


def mcp(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders that may be read; the working directory by default.",
            metavar="DIR",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    *,
    allow_run: Annotated[
        bool,
        typer.Option("--allow-run", help="Offer try, which runs recorded programs."),
    ] = False,
) -> None:
    """Serve lint, explain, diff, query and memory to an MCP client, read-only.

    Reads requests from standard input and answers on standard output.
    """
    from traceq.agent.mcp_server import build

    build(folders or [Path.cwd()], allow_run=allow_run).run("stdio")


COMMANDS = {"guide": guide, "install": install, "mcp": mcp}
