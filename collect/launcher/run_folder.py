"""Run folder: its name and the launches that share it. Nothing in it is overwritten."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from pathlib import Path
from typing import Mapping

from .options import DEFAULT_OUT

_NODE_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "NODE_RANK", "GROUP_RANK")
_NODE_OPTION = re.compile(r"--(node|machine)[-_]rank(=(?P<value>\d+))?")
_INTERPRETERS = re.compile(
    r"(python|ipython|torchrun|accelerate|deepspeed|uv|bash|sh|env|srun)[\d.]*"
)
_SUBCOMMANDS = ("launch", "run")  # of accelerate and uv


class TakenError(Exception):
    """A run with that name exists."""


def launch_index(command: list[str], environment: Mapping[str, str]) -> int | None:
    """Return the number of this launcher where one run has several, else None.

    There is one launcher per node, or one per rank where a cluster's own launcher
    starts the ranks; the cluster numbers them.
    """
    for name in _NODE_VARIABLES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    if environment.get("SLURM_NTASKS", "1") != "1" and "SLURM_STEP_ID" in environment:
        return int(environment.get("SLURM_PROCID", "0"))
    for word, following in zip(command, [*command[1:], ""]):
        match = _NODE_OPTION.fullmatch(word)
        value = (match["value"] or following) if match else ""
        if value.isdigit():
            return int(value)
    return None


def run_file(index: int | None) -> str:
    """Return the name of the run file of one launcher."""
    return f"run.node-{index}.json" if index else "run.json"


def log_file(index: int | None) -> str:
    """Return the name of the log of one launcher."""
    return f"stderr.node-{index}.log" if index else "stderr.log"


def create(out: Path, name: str | None, command: list[str], index: int | None) -> Path:
    """Create the run folder and return it.

    If it exists, a name that the user chose is refused, and a default name gets a
    number; only launchers of one run, distinguished by ``index``, share a folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    _ignore(out)
    base = name or default_name(command)
    for number in range(1, 1000):
        folder = out / (base if number == 1 else f"{base}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            shared = index is not None and not (folder / run_file(index)).exists()
            if shared and folder.is_dir() and (name or number > 1):
                return folder
            if name is None:
                continue
            msg = (
                f"{folder} exists, and runs are not overwritten: choose another --name"
            )
            raise TakenError(msg) from None
        return folder
    msg = f"{out} already has 999 runs named {base}: choose a --name"
    raise TakenError(msg)


def _ignore(out: Path) -> None:
    """Keep runs out of git: they are large, and have the program's source in them.

    Only in the usual folder: what else ``--out`` names may be the user's own.
    """
    if out.name == DEFAULT_OUT:
        with contextlib.suppress(OSError), (out / ".gitignore").open("x") as file:
            file.write("*\n")


def default_name(command: list[str]) -> str:
    """Return a name made of the program's name, the date and the time."""
    moment = dt.datetime.now().astimezone()
    return f"{program_name(command)}-{moment:%Y%m%d-%H%M%S}"


def program_name(command: list[str]) -> str:
    """Return the program's name, without the interpreters before it."""
    words = list(command)
    for place, word in enumerate(words):
        base = os.path.basename(word)
        if word == "-m" and place + 1 < len(words):
            return _plain(words[place + 1].split(".")[0])
        if base.endswith((".py", ".sh")):
            return _plain(base.rsplit(".", 1)[0])
    for word in words:
        base = os.path.basename(word)
        if word.startswith("-") or word in _SUBCOMMANDS:
            continue
        if not _INTERPRETERS.fullmatch(base):
            return _plain(base)
    return _plain(os.path.basename(words[0]))


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text).strip("._-")[:60] or "run"
