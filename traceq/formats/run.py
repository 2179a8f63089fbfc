"""Reader of run folders, whose format the README of ``collect`` describes."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from traceq.common.units import NS_PER_MS
from traceq.common.words import MODULE_LEVEL
from traceq.errors import InputError
from traceq.formats.oom import read_oom
from traceq.formats.slow_steps import read_slow_steps
from traceq.model.owners import Owners
from traceq.model.run import (
    Compiled,
    CompiledPlace,
    HostCost,
    LongSteps,
    Rank,
    RecorderOverhead,
    Run,
    StepTime,
    Window,
    last_level,
)

_FORMAT = 1
_LARGEST = 64 << 20
_LARGEST_SOURCES = 16 << 20
_MOST_CAPTURES = 1_000
_OVERHEAD_VERSION = 1
_LONGEST_MS = 1e12
_MOST_LAPS = 200
_LONGEST_EVENT_NS = 10_000_000


def is_run(folder: Path) -> bool:
    """Return whether a folder is one of ``traceq collect``."""
    return folder.is_dir() and any(_manifests(folder))


def read_run(folder: Path) -> Run:
    """Return the run of a run folder; files that its manifest names must be in it."""
    manifests = [_read(file) for file in _manifests(folder)]
    launchers = [manifest for manifest in manifests if "command" in manifest]
    first = launchers[0] if launchers else {}
    by_name = {
        str(rank.get("name")): rank
        for rank in (
            *(manifest for manifest in manifests if "rank" in manifest),
            *(rank for manifest in launchers for rank in _list(manifest.get("ranks"))),
        )
        if isinstance(rank, dict)
    }
    ranks = [_rank(folder, rank) for rank in by_name.values()]
    logs = [_file(folder, manifest.get("log")) for manifest in launchers]
    return Run(
        folder=folder,
        command=tuple(map(str, _list(first.get("command")))),
        labels={str(key): str(value) for key, value in _dict(first, "labels").items()},
        ranks=tuple(sorted(ranks, key=lambda rank: (rank.rank, rank.name))),
        logs=tuple(log for log in logs if log),
        state=str(first.get("state", "running")),
        recorder_overhead=next(filter(None, map(_overhead, launchers)), None),
        failed_with=_failed_with(_dict(first, "exit")),
        manifest=first,
    )


def _failed_with(ended: dict[str, Any]) -> str:
    """Return how a program failed; empty if it did not, or traceq ended it."""
    if ended.get("stopped_by_traceq"):
        return ""
    if signal := _text(ended.get("signal")):
        return signal
    status = ended.get("status")
    return f"status {status}" if type(status) is int and status else ""


def command_of(folder: Path) -> tuple[str, ...]:
    """Return the command of a run folder; nothing if it is none, or says none."""
    with suppress(InputError, OSError):
        for manifest in map(_read, _manifests(folder) if folder.is_dir() else ()):
            if words := _list(manifest.get("command")):
                return tuple(map(str, words))
    return ()


def _manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob("run*.json")) + sorted(folder.glob("rank-*[0-9].json"))


def _read(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes() if file.stat().st_size < _LARGEST else b""
        manifest = orjson.loads(content)
    except (OSError, orjson.JSONDecodeError):
        # A process that was killed leaves the file that it took its name with.
        return {}
    if not isinstance(manifest, dict):
        return {}
    version = manifest.get("format")
    if isinstance(version, int) and version > _FORMAT:
        msg = f"{file} was written by a newer traceq (format {version}): update traceq"
        raise InputError(msg)
    return manifest


def _rank(folder: Path, manifest: dict[str, Any]) -> Rank:
    number = manifest.get("rank")
    oom = _dict(manifest, "oom")
    watched = _file(folder, manifest.get("slow_steps"))
    facts, snapshot = _file(folder, oom), _file(folder, {"file": oom.get("snapshot")})
    return Rank(
        name=str(manifest.get("name")),
        rank=number if isinstance(number, int) else 0,
        state=str(manifest.get("state", "")),
        trace=_file(folder, manifest.get("trace")),
        memory=snapshot or _file(folder, manifest.get("memory")),
        step_time=_step_time(_dict(manifest, "step_time")),
        missing=tuple(f"no {what}: {why}" for what, why in _reasons(manifest)),
        reasons=dict(_reasons(manifest)),
        device=_text(manifest.get("device")),
        discarded=tuple(
            _text(attempt.get("why"))
            for attempt in _list(_dict(manifest, "trace").get("attempts"))
            if isinstance(attempt, dict)
        ),
        cores=_cores(manifest),
        tf32=_tf32(_dict(manifest, "switches")),
        cudnn_benchmark=_flag(_dict(manifest, "switches").get("cudnn_benchmark")),
        cudnn_deterministic=_flag(
            _dict(manifest, "switches").get("cudnn_deterministic")
        ),
        torch=_torch(_dict(manifest, "versions")),
        first_lines=_first_lines(_list(_dict(manifest, "trace").get("open_functions"))),
        owners=_owners(_dict(manifest, "packages")),
        sources=_sources(folder / "sources", _list(manifest.get("sources"))),
        steps_by=_text(_dict(manifest, "steps").get("by")),
        window=_window(_dict(manifest, "trace")),
        first_step=_first_step(manifest),
        warm=_warm(manifest),
        compiled=_compiled(_dict(manifest, "compiled"))
        if "compiled" in manifest
        else None,
        compiled_code=_file(folder, manifest.get("compiled_code")),
        captures=tuple(
            file
            for entry in _list(manifest.get("captures"))[:_MOST_CAPTURES]
            if (file := _file(folder, entry))
        ),
        oom=read_oom(facts, oom.get("steps_after")) if facts else None,
        slow=read_slow_steps(watched) if watched else None,
    )


def _reasons(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the missing parts, each with the reason."""
    return [
        (str(entry.get("what")), str(entry.get("why")))
        for entry in _list(manifest.get("missing"))
        if isinstance(entry, dict)
    ]


def _compiled(entry: dict[str, Any]) -> Compiled:
    ops = entry.get("ops")
    return Compiled(
        ops if type(ops) is int and ops >= 0 else 0,
        _compiled_places(_list(entry.get("graph_breaks"))),
        _compiled_places(_list(entry.get("recompiles"))),
    )


def _compiled_places(entries: list[Any]) -> tuple[CompiledPlace, ...]:
    def texts(entry: dict[str, Any], key: str) -> str | None:
        return text if isinstance(text := entry.get(key), str) else None

    return tuple(
        CompiledPlace(
            texts(entry, "file"),
            line if type(line := entry.get("line")) is int and line > 0 else None,
            texts(entry, "function"),
            texts(entry, "why") or "",
            count if type(count := entry.get("count")) is int and count > 0 else 1,
        )
        for entry in entries
        if isinstance(entry, dict)
    )


def _sources(folder: Path, entries: list[Any]) -> dict[str, str]:
    """Return the copies of source files that are as they were copied."""
    sources: dict[str, str] = {}
    left = _LARGEST_SOURCES
    for entry in entries:
        file = _file(folder, entry)
        name = entry.get("name") if file else None
        if file is None or not isinstance(name, str) or file.stat().st_size > left:
            continue
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() == entry.get("sha256"):
                sources[name] = content.decode("utf-8")
                left -= len(content)
        except (OSError, ValueError):
            continue
    return sources


def _first_lines(functions: list[Any]) -> dict[tuple[str, str], int]:
    """Return the first lines of functions, without those that share file and name.

    Of a file's own statements it is the one that ran when the recording started.
    """
    lines: dict[tuple[str, str], set[int]] = {}
    for function in functions:
        by_function = function if isinstance(function, dict) else {}
        file, name, line = (
            by_function.get(key) for key in ("file", "function", "line")
        )
        line = by_function.get("at") if name == MODULE_LEVEL else line
        if isinstance(file, str) and isinstance(name, str) and type(line) is int:
            lines.setdefault((file, name), set()).add(line)
    return {key: min(of) for key, of in lines.items() if len(of) == 1 and min(of) > 0}


def _owners(packages: dict[str, Any]) -> Owners:
    """Return the owners of packages, as the process recorded them."""
    own, installed = (
        frozenset(name for name in _list(packages.get(key)) if isinstance(name, str))
        for key in ("own", "installed")
    )
    return Owners(own=own, installed=installed)


def _torch(versions: dict[str, Any]) -> str:
    """Return the version of torch as a trace's facts have it: 2.11."""
    version = re.match(r"\d+\.\d+", str(versions.get("torch", "")))
    return version[0] if version else ""


def _first_step(entry: dict[str, Any]) -> int | None:
    """Return the number of the first traced step, where ranks number them alike."""
    first = _dict(entry, "trace").get("first_step")
    alike = _dict(entry, "steps").get("by") != "forward"
    return first if type(first) is int and alike else None


def _warm(entry: dict[str, Any]) -> bool:
    traced = _dict(entry, "trace")
    return bool(_dict(entry, "warmup")) and traced.get("compiled_during_trace") is False


def _cores(entry: dict[str, Any]) -> int | None:
    """Return the cores of a process; torch's threads are as many unless set."""
    cores = entry.get("cores")
    if cores is None and "OMP_NUM_THREADS" not in _dict(entry, "environment"):
        cores = _dict(entry, "switches").get("cpu_threads")
    return cores if isinstance(cores, int) and cores > 0 else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _tf32(switches: dict[str, Any]) -> bool | None:
    """Return whether float32 matmuls may round to TF32, where that was recorded."""
    precision = switches.get("float32_matmul_precision")
    if precision is None:
        return None
    return precision != "highest" or bool(switches.get("matmul_allow_tf32"))


def _step_time(entry: dict[str, Any]) -> StepTime | None:
    keys = ("ms", "median_ms", "min_ms", "max_ms")
    times = [entry.get(key) for key in keys]
    steps = entry.get("steps")
    if not isinstance(steps, int) or not all(
        isinstance(value, (int, float)) and 0 < value < _LONGEST_MS for value in times
    ):
        return None
    mean, median, least, most = (round(float(ms or 0) * NS_PER_MS) for ms in times)
    period = entry.get("period")
    long = _long_steps(_dict(entry, "long_steps"))
    return StepTime(
        *(mean, median, least, most, steps),
        long=long,
        period=period if type(period) is int and period > 1 else None,
        usual_range_ns=_usual_range(entry, most),
        last_level_ns=None if long else _last_level(entry),
    )


def _last_level(entry: dict[str, Any]) -> int | None:
    """Return the level of the last steps, if they went to another one."""
    # The time to find a change of level grows with the square of their number.
    listed = _list(entry.get("laps_ms"))[-_MOST_LAPS:]
    laps = [lap for lap in listed if isinstance(lap, int | float)]
    level = last_level([lap for lap in laps if 0 < lap < _LONGEST_MS])
    return None if level is None else round(level * NS_PER_MS)


def _usual_range(entry: dict[str, Any], most: int) -> int:
    low, high = (entry.get(key) for key in ("p10_ms", "p90_ms"))
    if not (isinstance(low, (int, float)) and isinstance(high, (int, float))):
        return 0
    return round(min(max(0.0, high - low) * NS_PER_MS, most))


def _long_steps(entry: dict[str, Any]) -> LongSteps | None:
    share, ms, typical = (entry.get(key) for key in ("share", "ms", "typical_ms"))
    if not all(isinstance(item, (int, float)) for item in (share, ms, typical)):
        return None
    steps = LongSteps(float(share or 0), *(round(_ns(item)) for item in (ms, typical)))
    usable = 0 < steps.share < 1 and steps.ns > steps.typical_ns > 0
    return steps if usable else None


def _ns(ms: object) -> float:
    plausible = isinstance(ms, (int, float)) and 0 < ms < _LONGEST_MS
    return float(ms) * NS_PER_MS if plausible else 0.0  # type: ignore[arg-type]  # just checked


def _window(trace: dict[str, Any]) -> Window:
    window = trace.get("window")
    return window if window in ("period", "typical", "consecutive") else ""


def _overhead(entry: dict[str, Any]) -> RecorderOverhead | None:
    return read_overhead(_dict(entry, "recorder_overhead"))


def read_overhead(measured: dict[str, Any]) -> RecorderOverhead | None:
    """Return the cost of recording as collect measured it, if that is usable."""
    if measured.get("version") != _OVERHEAD_VERSION:
        return None
    frame, op, call = (_cost(_dict(measured, kind)) for kind in ("frame", "op", "call"))
    stacks = measured.get("stacks") is True
    if op is None or (stacks and frame is None):
        return None
    return RecorderOverhead(frame, op, call, stacks)


def _cost(entry: dict[str, Any]) -> HostCost | None:
    times = [entry.get(key) for key in HostCost._fields]
    if all(type(ns) is int and 0 <= ns <= _LONGEST_EVENT_NS for ns in times):
        return HostCost(*times)  # type: ignore[arg-type]  # just checked
    return None


def _file(folder: Path, entry: object) -> Path | None:
    """Return a file that the manifest names, if it is there and nowhere else."""
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str) or name != Path(name).name:
        return None
    file = folder / name
    try:
        return file if file.is_file() else None
    except OSError:  # a name that no file can have
        return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
