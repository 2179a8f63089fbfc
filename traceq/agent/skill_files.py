"""Skill for coding agents: a folder with SKILL.md and what it loads on demand."""

from __future__ import annotations

from importlib.resources import files

NAMES = ("SKILL.md", "fields.md", "commands.md")
FOLDER = "traceq"


def skill() -> dict[str, bytes]:
    """Return the files of the skill, by name."""
    folder = files("traceq.agent") / "skill"
    return {name: (folder / name).read_bytes() for name in NAMES}


def guide() -> str:
    """Return one screen on working with traceq, from recording to proof."""
    text = skill()["SKILL.md"].decode()
    return text.partition("---\n")[2].partition("---\n")[2].lstrip("\n")
