"""Facts about the run from the launcher: command, repository, machine, options."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ..shared import manifest, redact

_PYTHON = re.compile(r"python[\d.]*")
_ISOLATING = re.compile(r"-[a-zA-Z]*[IES][a-zA-Z]*")
_CLEARING = frozenset(
    ("sudo", "doas", "su", "ssh", "docker", "podman", "apptainer", "singularity")
)
_CLEARED = ("-i", "-", "--ignore-environment")
_SETS_PATH = re.compile(
    r"""(?<![\w$#{])PYTHONPATH=(?P<value>"[^"]*"|'[^']*'|[^\s;&|]*)"""
)
_LONGEST = 1 << 16  # characters of a script that are looked at


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
        "numbers": {},
        "recorder_overhead": None,
        "missing": [],
    }


def shown_options(chosen: Any) -> dict[str, Any]:
    """Return the options that determine what is recorded."""
    hidden = ("command", "out", "name", "label", "node", "lint", "report")
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


def git_with_changes(command: list[str]) -> dict[str, Any] | None:
    """Return the commit of the program, and its dirty files."""
    place = program_folder(command)
    known = git(place)
    if known is None:
        return None
    ask = ["git", "--no-optional-locks", "-C", str(place), "status", "--porcelain"]
    try:
        done = subprocess.run(
            [*ask, "-uno"], capture_output=True, timeout=10, check=False, text=True
        )
        files = [line[3:] for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError):
        files = []
    return {**known, "dirty_files": files[:100]}


def driver() -> str | None:
    """Return the version of the NVIDIA driver, if there is one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return (_output(query) or "").split("\n")[0].strip() or None
    match = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return match[1] if match else None


def why_not_loaded(command: list[str]) -> str | None:
    """Return a sentence on what in the command keeps the recorder out, if known."""
    words = [*_interpreter_line(command[0]), *command]
    for word, following in zip(words, [*words[1:], ""]):
        name = os.path.basename(word)
        if _PYTHON.fullmatch(name) and _ISOLATING.fullmatch(following):
            return (
                f"{name} {following} ignores PYTHONPATH, which loads the recorder; run"
                " it without -I, -E and -S"
            )
        if name in _CLEARING or (name == "env" and following in _CLEARED):
            what = name if name in _CLEARING else f"{name} {following}"
            return (
                f"{what} clears the environment, which loads the recorder; run traceq"
                f" collect inside it, as in {what} traceq collect -- python train.py"
            )
        if _sets_path(word) or _sets_path(_script(word)):
            setter = "the command" if _sets_path(word) else name
            return (
                f"{setter} sets PYTHONPATH, which loads the recorder; let it add to"
                " what is there, as in PYTHONPATH=src:$PYTHONPATH"
            )
        if _PYTHON.fullmatch(name) or word.endswith(".py"):
            break  # the rest are the program's own arguments
    return None


def why_no_python() -> str:
    """Return the reason why no process of a program may have loaded the recorder."""
    return (
        "no Python 3.9 or later was started that reads PYTHONPATH; -I, -E, -S, a"
        " container or a cleared environment prevent that"
    )


def _interpreter_line(program: str) -> list[str]:
    """Return the words of a script's first line, after ``#!``."""
    text = shutil.which(program)
    first = _beginning(text).partition("\n")[0] if text else ""
    return first[2:].split() if first.startswith("#!") else []


def _script(word: str) -> str:
    """Return the text of a shell script; empty if it is none."""
    text = _beginning(word) if os.path.isfile(word) else ""
    shell = re.match(r"#!.*\b(ba|da|k|z)?sh\b", text)
    return text if word.endswith((".sh", ".bash")) or shell else ""


def _beginning(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def _sets_path(text: str) -> bool:
    """Return whether PYTHONPATH is set without what it was before."""
    return any(
        "PYTHONPATH" not in match["value"] for match in _SETS_PATH.finditer(text)
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
