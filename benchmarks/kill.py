"""Commands killed at random moments: what follows is as if they had never run.

    python benchmarks/kill.py --moments 50 --seed 1

Kills ``summary`` (which loads and caches a trace), ``lint``, ``shrink`` and ``collect``
with SIGKILL when they have used a random share of the processor's time that a whole run
takes; ``collect`` with SIGINT and SIGTERM too, the launcher, the program or both, of
which none may be running 20 s later. After each kill the cache has a whole entry or
none, the fixture and the run folder have whole files or none; after every tenth the
command is run to its end and has to answer as ever. Exits 1 if anything differs, and
prints the moments.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from traceq.cache.tables import find
from traceq.errors import InputError
from traceq.formats.run import is_run, read_run
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.model.trace import Trace

_ROOT = Path(__file__).resolve().parents[1]
_TRACE = _ROOT / "fixtures" / "copies" / "trace.json.gz"
_OFTEN = 10
_POLL = 0.005
_STEPS = 2
_PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
_COLLECT = ("--no-overhead", "--warmup", "2", "--timed", "3", "--active", str(_STEPS))


_WHO = ("launcher", "program", "both")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_PATIENCE = 20.0


class Blow(NamedTuple):
    """A signal, and who gets it."""

    who: str
    number: signal.Signals


class Ended(NamedTuple):
    """How a command ended that nobody killed."""

    status: int
    out: bytes
    err: bytes
    seconds: float
    """Of the processor, with those of its children."""


def _start(words: list[str], cache: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        env=os.environ | {"TRACEQ_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _whole(words: list[str], cache: Path) -> Ended:
    before = sum(os.times()[2:4])
    child = _start(words, cache)
    out, err = child.communicate()
    return Ended(child.returncode, out, err, sum(os.times()[2:4]) - before)


def _killed(words: list[str], cache: Path, seconds: float, *, group: bool) -> None:
    """Run a command and kill it, or all that it started, after some seconds of work."""
    child = _start(words, cache)
    while child.poll() is None and _used(child.pid) < seconds:
        time.sleep(_POLL)
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(child.pid, signal.SIGKILL)
    # What it started and was not killed ends by itself, and closes its streams then.
    child.communicate()


def _struck(words: list[str], cache: Path, seconds: float, blow: Blow) -> list[str]:
    """Send a signal to the processes of a command; return which of them go on."""
    child = _start(words, cache)
    while child.poll() is None and _used(child.pid) < seconds:
        time.sleep(_POLL)
    programs = [pid for pid in _session(child.pid) if pid != child.pid]
    chosen = {"launcher": [child.pid], "program": programs}
    for pid in chosen.get(blow.who, [child.pid, *programs]):
        with suppress(ProcessLookupError):
            os.kill(pid, blow.number)
    # What is interrupted may write what it has.
    end = time.monotonic() + _PATIENCE
    while (left := _session(child.pid)) and time.monotonic() < end:
        child.poll()
        time.sleep(_POLL * 10)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.communicate()
    return [f"{len(left)} processes keep running"] if left else []


def _session(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    results = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                results.append(int(stat.parent.name))
    return results


def _used(session: int) -> float:
    """Return the processor's time of a session, in seconds."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _traceq(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "traceq", *map(str, words)]


def _reader(command: str) -> Callable[[list[float], random.Random, Path], list[str]]:
    def run(shares: list[float], _chance: random.Random, folder: Path) -> list[str]:
        words, cache = _traceq(command, _TRACE), folder / "cache"
        whole = _whole(words, folder / "whole")
        reference, faults = load(_TRACE, cache=False), []
        os.environ["TRACEQ_CACHE"] = str(cache)
        for number, share in enumerate(shares, 1):
            _killed(words, cache, share * whole.seconds, group=False)
            retained = find(_TRACE)
            if retained is not None and not _equal(retained, reference):
                faults.append(f"{share:.3f}: another trace is cached")
            if number % _OFTEN == 0 and _whole(words, cache)[:3] != whole[:3]:
                faults.append(f"{share:.3f}: another answer")
        return faults

    return run


def _equal(trace: Trace, other: Trace) -> bool:
    tables = other.frames_by_name()
    return all(
        table.equals(tables[name]) for name, table in trace.frames_by_name().items()
    )


def _shrink(shares: list[float], _chance: random.Random, folder: Path) -> list[str]:
    def words(target: Path) -> list[str]:
        return _traceq("shrink", _TRACE, "-o", target)

    whole = _whole(words(folder / "whole"), folder / "cache")
    expected, faults = _contents(folder / "whole"), []
    for number, share in enumerate(shares):
        target = folder / f"killed-{number}"
        seconds = share * whole.seconds
        _killed(words(target), folder / "cache", seconds, group=False)
        if target.exists() and _contents(target) != expected:
            faults.append(f"{share:.3f}: half a fixture")
        if number % _OFTEN == 0:
            _whole(words(target), folder / "cache")
            if _contents(target) != expected:
                faults.append(f"{share:.3f}: another fixture")
    return faults


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _collect(shares: list[float], chance: random.Random, folder: Path) -> list[str]:
    program = folder / "train.py"
    program.write_text(_PROGRAM, encoding="utf-8")

    def words(name: str) -> list[str]:
        options = ("--out", folder / "runs", "--name", name, *_COLLECT)
        return _traceq("collect", *options, "--", sys.executable, program)

    whole = _whole(words("whole"), folder / "cache")
    faults = _half(folder / "runs" / "whole", must=True)
    for number, share in enumerate(shares):
        blow = Blow(chance.choice(_WHO), chance.choice(_SIGNALS))
        name, seconds = f"killed-{number}", share * whole.seconds
        result = _struck(words(name), folder / "cache", seconds, blow)
        result += _half(folder / "runs" / name, must=False)
        if number % _OFTEN == 0:
            _whole(words(f"after-{number}"), folder / "cache")
            result += _half(folder / "runs" / f"after-{number}", must=True)
        faults += [
            f"{share:.3f}, {blow.number.name}, {blow.who}: {item}" for item in result
        ]
    return faults


def _half(run: Path, *, must: bool) -> list[str]:
    """Return what of a run is taken for whole and is not."""
    if not is_run(run):
        return [f"{run.name} is no run"] if must else []
    faults = []
    for rank in read_run(run).ranks:
        if rank.trace is None:
            faults += [f"{run.name} has no trace"] if must else []
            continue
        try:
            trace = load(run, rank=rank.rank, cache=False)
        except InputError as error:
            faults.append(str(error))
            continue
        if trace.facts.damage or trace.steps.height != _STEPS:
            faults.append(
                f"{trace.steps.height} steps; {'; '.join(trace.facts.damage)}"
            )
    return faults


_COMMANDS = {
    "load": _reader("summary"),
    "lint": _reader("lint"),
    "shrink": _shrink,
    "collect": _collect,
}


def main() -> None:
    """Kill the commands that were asked for; exit 1 if that changed anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moments", type=int, default=50, help="of each command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", nargs="+", choices=_COMMANDS, default=_COMMANDS)
    options = parser.parse_args()
    failed = False
    for command in options.commands:
        chance = random.Random(f"{options.seed}/{command}")  # noqa: S311 - repeatable
        shares = [chance.uniform(0, 1.05) for _ in range(options.moments)]
        with tempfile.TemporaryDirectory() as folder:
            faults = _COMMANDS[command](shares, chance, Path(folder))
        failed |= bool(faults)
        print(f"{command}: {options.moments} kills, {len(faults)} faults", flush=True)
        print("".join(f"  {fault}\n" for fault in faults), end="", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
