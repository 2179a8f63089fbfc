"""What the launcher knows about the run: command, repository, machine, options."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from ..shared import manifest, redact

_ISOLATING = re.compile(r"-[a-zA-Z]*[IES][a-zA-Z]*")


def at_start(chosen: Any, name: str, index: int | None) -> dict[str, Any]:
    """Return the run file's content before the program starts."""
    cwd = os.getcwd()
    return {
        "format": manifest.FORMAT,
        "tool": "traceq collect",
        "name": name,
        "launch": index or 0,
        "state": "running",
        "started": manifest.now(),
        "ended": None,
        "seconds": None,
        "command": _command(chosen, cwd),
        "cwd": cwd if chosen.keep_paths else redact.folder(cwd, home=_home()),
        "host": platform.node() if chosen.keep_paths else None,
        "system": f"{platform.system()} {platform.machine()}",
        "driver": driver(),
        "git": git(program_folder(chosen.command)),
        "labels": {key: redact.label(key, value) for key, value in chosen.label},
        "options": shown_options(chosen),
        "exit": None,
        "log": None,
        "world_size": None,
        "ranks": [],
        "recorder_overhead": None,
        "missing": [],
    }


def shown_options(chosen: Any) -> dict[str, Any]:
    """Return the options that determine what is recorded."""
    hidden = ("command", "out", "name", "label", "node")
    return {key: value for key, value in vars(chosen).items() if key not in hidden}


def _command(chosen: Any, cwd: str) -> list[str]:
    words = redact.arguments(chosen.command)
    if chosen.keep_paths:
        return words
    return [redact.paths(word, cwd=cwd, home=_home()) for word in words]


def _home() -> str:
    return os.path.expanduser("~")


def program_folder(command: list[str]) -> Path:
    """Return the folder of the script, or the working directory."""
    for word in command:
        file = Path(word)
        if file.suffix in (".py", ".sh") and file.is_file():
            return file.resolve().parent
    return Path.cwd()


def git(place: Path) -> dict[str, Any] | None:
    """Return the commit of the program's repository, and whether it is dirty."""
    # Without locks: a full disk or a signal would leave one in the user's repository.
    ask = ["git", "--no-optional-locks", "-C", str(place)]
    commit = _output([*ask, "rev-parse", "HEAD"])
    if commit is None:
        return None
    changes = _output([*ask, "status", "--porcelain", "-uno"])
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def driver() -> str | None:
    """Return the version of the NVIDIA driver, if there is one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return (_output(query) or "").split("\n")[0].strip() or None
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return found[1] if found else None


def why_no_python(command: list[str]) -> str:
    """Return why no Python process of the program loaded the agent."""
    for word, following in zip(command, command[1:]):
        is_python = re.fullmatch(r"python[\d.]*", os.path.basename(word))
        if is_python and _ISOLATING.fullmatch(following):
            return (
                f"{os.path.basename(word)} {following} ignores PYTHONPATH, which loads"
                " the recorder; run it without -I, -E and -S"
            )
    return (
        "no Python 3.9 or later was started that reads PYTHONPATH; -I, -E, -S, a"
        " container or a cleared environment prevent that"
    )


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
