"""Scripted agents: one applies certain edits, one does nothing, one breaks programs.

python benchmarks/agents/scripted.py literal|nothing|breaker < prompt
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_EDIT = re.compile(r"^edit: certain (?P<file>.+):(?P<line>\d+)$")


def certain_edits(prompt: str) -> list[tuple[str, int, list[str], list[str]]]:
    """Return the certain edits of a prompt: file, line, lines before and after."""
    edits = []
    lines = prompt.splitlines()
    for number, line in enumerate(lines):
        match = _EDIT.match(line)
        if not match:
            continue
        before: list[str] = []
        after: list[str] = []
        for change in lines[number + 1 :]:
            if change[:2] not in {"- ", "+ ", "  "}:
                break
            if change[0] in "- ":
                before.append(change[2:])
            if change[0] in "+ ":
                after.append(change[2:])
        edits.append((match["file"], int(match["line"]), before, after))
    return edits


def apply_edits(folder: Path, prompt: str) -> int:
    """Apply certain edits to a folder, from the last line on; return how many."""
    edits = sorted(certain_edits(prompt), key=lambda one: -one[1])
    done = 0
    for file, line, before, after in edits:
        path = folder / file
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines[line - 1 : line - 1 + len(before)] != before:
            continue
        lines[line - 1 : line - 1 + len(before)] = after
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        done += 1
    return done


def main() -> None:
    """Act as the agent that the command line names, in the working directory."""
    prompt = sys.stdin.read()
    kind, folder = sys.argv[1], Path.cwd()
    if kind == "literal":
        print(f"{apply_edits(folder, prompt)} edits")
    elif kind == "breaker":
        for path in folder.glob("*.py"):
            path.write_text("raise SystemExit(3)\n", encoding="utf-8")
    elif kind != "nothing":
        sys.exit(f"unknown agent: {kind}")


if __name__ == "__main__":
    main()
