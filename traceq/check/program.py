"""Run the program of a fixture under collect, on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from traceq.common.locations import bundled
from traceq.errors import UsageError
from traceq.formats.fixture_origin import ORIGIN
from traceq.formats.run import is_run, read_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.check.fixture import Fixture

LEFT_OUT = "…"
"""Replacement for a private word of a command."""

_COLLECT = ("traceq", "collect")
# Few steps and the same number in every run: what is compiled depends on it.
_ON_CPU = (
    *("--no-overhead", "--no-memory"),
    *("--warmup", "3", "--timed", "3", "--active", "2"),
)
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_NO_CUDA = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "no CUDA-capable device",
    "torch.cuda.is_available() is False",
)
_PATIENCE_S = 5.0
_WINDOWS = os.name == "nt"
# So that what a program starts can be ended with it, and Ctrl-C is ours alone.
_OWN_GROUP: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if _WINDOWS
    else {"start_new_session": True}
)
_TAIL = 15
_LARGEST = 1 << 20


class ProgramError(UsageError):
    """A program that could not be run, or of which nothing was recorded."""

    def __init__(self, message: str, last_lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.last_lines = last_lines
        """The last lines that it wrote before it ended."""


@dataclass(frozen=True)
class Command:
    """Command line and folder of a fixture's program."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    """Options of collect that its author gave."""
    folder: Path
    """Working directory."""


def has_gpu() -> bool:
    """Return whether this machine has a GPU that torch might use."""
    return any(Path(device).exists() for device in _DEVICES)


def command_of(fixture: Fixture) -> Command | None:
    """Return the command in a fixture's origin.toml; None if it has none.

    A relative path in it is relative to the repository, or to ``folder`` in there.
    """
    entry = fixture.origin.get("command")
    if not entry:
        return None
    where = f"{fixture.folder / ORIGIN}: command"
    words, options = _without_collect(_words(entry, where), where)
    if not words or any(LEFT_OUT in word for word in words):
        msg = f"{where} is not whole: write all words of it, for traceq to run it"
        raise ProgramError(msg)
    folder = repository(fixture.folder) / str(fixture.origin.get("folder", ""))
    if not folder.is_dir():
        msg = f"{fixture.folder / ORIGIN}: folder {str(folder)!r} is not a folder"
        raise ProgramError(msg)
    return Command(_with_python(words), options, folder)


def repository(place: Path) -> Path:
    """Return the git repository around a place; without one, the current folder."""
    here = place.resolve()
    for folder in (here, *here.parents):
        if (folder / ".git").exists():
            return folder
    return Path.cwd()


def _words(entry: object, where: str) -> list[str]:
    if isinstance(entry, list) and all(isinstance(word, str) for word in entry):
        return entry
    try:
        return shlex.split(str(entry))
    except ValueError as error:
        msg = f"{where} cannot be read: {error}"
        raise ProgramError(msg) from None


def _without_collect(
    words: Sequence[str], where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the program's words, and the options of collect before them."""
    if tuple(words[:2]) != _COLLECT:
        return tuple(words), ()
    if "--" not in words:
        msg = f"{where} has no program after --: traceq collect -- python train.py"
        raise ProgramError(msg)
    at = words.index("--")
    return tuple(words[at + 1 :]), tuple(words[2:at])


def _with_python(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words with a Python that exists: where none is called so, ours."""
    is_python = words[0] in ("python", "python3")
    return (sys.executable, *words[1:]) if is_python and not which(words[0]) else words


def run_program(command: Command, out: Path, *, cpu: bool, timeout_s: float) -> Path:
    """Run a program under collect and return the run folder, in ``out``.

    With ``cpu`` it sees no GPU. Raises ``ProgramError`` with its last words if it
    fails, takes too long, or makes too few steps to be recorded.
    """
    on_cpu = cpu or not has_gpu()
    out.mkdir(parents=True, exist_ok=True)
    folder = _unused(out)
    words = [
        *(sys.executable, str(bundled("collect"))),
        *("--out", str(out.resolve()), "--name", folder.name),
        *("--then-exit", "--quiet", *(_ON_CPU if on_cpu else ())),
        *(*command.options, "--", *command.words),
    ]
    log = out / f"{folder.name}.output.txt"
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})}
    status = _run(words, command.folder, environment, log, timeout_s)
    line = shlex.join(command.words)
    if status is None:
        msg = f"{line} was stopped after {timeout_s:g} s (--timeout)"
        raise ProgramError(msg, _tail(log))
    if own := _own_status(folder, status):
        raise ProgramError(_why_failed(line, own, log), _tail(log))
    why = _why_nothing(folder)
    if why:
        msg = f"{line} ran, and nothing was recorded: {why}"
        raise ProgramError(msg, _tail(log))
    return folder


def _unused(out: Path) -> Path:
    """Return a name for a run that no earlier one has."""
    names = chain(["run"], (f"run-{number}" for number in count(2)))
    return next(out / name for name in names if not (out / name).exists())


def _run(
    words: list[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
) -> int | None:
    """Return a command's exit status, None if it took too long; keep its output."""
    with log.open("wb") as stream:
        process = subprocess.Popen(  # noqa: S603 - what the fixture's author wrote
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            **_OWN_GROUP,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, if it still runs."""
    if process.poll() is not None:
        return
    for stop in (_kill_tree,) if _WINDOWS else (_terminate_group, _kill_group):
        with contextlib.suppress(ProcessLookupError):
            stop(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
            return


def _terminate_group(number: int) -> None:
    os.killpg(number, signal.SIGTERM)


def _kill_group(number: int) -> None:
    os.killpg(number, signal.SIGKILL)


def _kill_tree(number: int) -> None:
    """End a process and its children on Windows, which has no signals for groups."""
    words = ["taskkill", "/T", "/F", "/PID", str(number)]
    subprocess.run(words, capture_output=True, check=False)  # noqa: S603


def _own_status(folder: Path, status: int) -> int:
    """Return the program's own exit status: collect's is 2 if it recorded nothing."""
    ended: Any = read_run(folder).manifest.get("exit") if is_run(folder) else None
    own = ended.get("status") if isinstance(ended, dict) else None
    return own if isinstance(own, int) else status


def _why_failed(line: str, status: int, log: Path) -> str:
    if any(text in _content(log) for text in _NO_CUDA):
        return (
            f"{line} needs CUDA, which this machine does not have: let it choose the"
            ' device ("cuda" if torch.cuda.is_available() else "cpu"), or run this on a'
            " machine with a GPU"
        )
    return f"{line} failed with exit status {status}"


def _why_nothing(folder: Path) -> str:
    """Return why there is no trace in a run folder; empty if there is one."""
    if not is_run(folder):
        return "collect wrote no run folder"
    run = read_run(folder)
    if any(rank.trace for rank in run.ranks):
        return ""
    reasons = [why for rank in run.ranks for why in rank.missing if "trace" in why]
    others: Any = run.manifest.get("missing")
    reasons += [
        str(other.get("why"))
        for other in (others if isinstance(others, list) else [])
        if isinstance(other, dict)
    ]
    return reasons[0] if reasons else "it made no steps"


def _content(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_bytes()[-_LARGEST:].decode(errors="replace")
    return ""


def _tail(log: Path) -> list[str]:
    lines = [line.rstrip() for line in _content(log).splitlines() if line.strip()]
    return [line for line in lines if not line.startswith("USDT:")][-_TAIL:]
