"""Recordings of others' programs with ``collect`` and with a plain profiler.

    python benchmarks/recordings/measure.py CORPUS [NAME ...] --out results.jsonl

CORPUS is a folder with the programs of ``programs.toml``, each at the commit named
there, and ``run_one.sh``, which prepares data and runs one of them. Each program runs
twice. The run under ``collect``, with its default options, goes to the end;
``hook/sitecustomize.py`` only counts its steps. In the plain run, the hook times the
steps after a warm-up, profiles the steps that ``collect`` traced, or later ones where
these came before the timing was done, and ends the program. One line of JSON per
program is appended as soon as it is known: ``table.py`` makes the table of
docs/record.md of them. Needs Python and torch alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomllib  # type: ignore[import-not-found]  # Python 3.11 has it

_HERE = Path(__file__).resolve().parent
_COLLECT = _HERE.parents[1] / "collect"
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
# Steps to profile plainly, where an iteration is more than six optimizer steps.
_PROFILED = {"cleanrl_ppo": 2, "cleanrl_sac": 20, "mamba_py": 10}
_PROFILED_ELSE = 6
# A wrapped function is compiled otherwise than the program's own.
_NOT_HOOKED = ("gpt_fast_compile",)
_LONG_FACTS = ("steps", "open_functions")
_LONG = ("errors", "trace_facts")
_WARM_STEPS = 10
_NUMBERS = re.compile(rb"[-+]?\d[\d.,:e+-]*|\s+")


def main() -> None:
    """Measure the programs, in the order of their names on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parallel", type=int, default=1, help="programs at a time")
    parser.add_argument("--repeat", type=int, default=1, help="plain and recorded runs")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after")
    parser.add_argument("--each", type=float, default=100, help="seconds of a run")
    parser.add_argument("--keep", type=Path, help="keep run folders here")
    parser.add_argument("--tiny", action="store_true", help="the commands for a CPU")
    options = parser.parse_args()
    programs = _programs()
    end = time.monotonic() + options.seconds

    def measured(name: str) -> None:
        if time.monotonic() > end:
            return
        result = _measured(programs[name], options)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(_line(result), flush=True)

    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(measured, options.names or programs))


def _programs() -> dict[str, dict[str, Any]]:
    with (_HERE / "programs.toml").open("rb") as file:
        return {entry["name"]: entry for entry in tomllib.load(file)["program"]}


def _measured(program: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of the recorded and the plain runs of a program, in turns."""
    plain, recorded = [], []
    for _ in range(options.repeat):
        recorded.append(_recorded(program, options))
        plain.append(_plain(program, options, recorded[-1]))
    same = all(
        one["output"].startswith(other["output"])
        for one, other in zip(recorded, plain, strict=True)
    )
    for run in (*plain, *recorded):
        del run["output"]
    return {
        "name": program["name"],
        "kind": program["kind"],
        "plain": plain,
        "recorded": recorded,
        "output_is_the_same": same,
    }


def _plain(
    program: dict[str, Any], options: argparse.Namespace, recorded: dict[str, Any]
) -> dict[str, Any]:
    first, count = 0, _PROFILED.get(program["name"], _PROFILED_ELSE)
    if recorded.get("traced_steps") and _counts_alike(recorded):
        first, count = recorded["first_step"], recorded["traced_steps"]
    with tempfile.TemporaryDirectory() as folder:
        run = _run(program, options, Path(folder), [], {"first": first, "steps": count})
        hooks = [entry for entry in run.pop("hooks") if "step_ms" in entry]
        for hook in hooks:
            run |= {key: hook.get(key) for key in ("step_ms", "gpu_ms", "kernels")}
            run |= {"timed": hook["timed"], "median_ms": _median_ms(hook["ends"])}
            run["same_steps"] = hook.get("first") == first
            # The last steps were profiled.
            laps = _laps_ms(hook["ends"][_WARM_STEPS : hook["first"]])
            run["step_range_ms"] = _range_ms(laps, recorded.get("timed") or 0)
    return run


def _counts_alike(recorded: dict[str, Any]) -> bool:
    """Return whether ``collect`` counted the steps that the author counts."""
    counted = recorded["counted_steps"]["seen"]
    author = recorded.get("profiled_author_steps") or [0]
    return abs(counted - author[-1]) <= max(3, counted / 50)


def _recorded(program: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [sys.executable, str(_COLLECT), "--out", str(folder), "--name", "run"]
        run = _run(program, options, folder, [*words, "--"], {})
        hooks = run.pop("hooks")
        run["author_steps"] = max((item["steps"] for item in hooks), default=0)
        run |= _of_run(folder / "run")
        for hook in hooks:
            profiled = hook.get("profiled") or [len(hook["ends"])]
            run["profiled_author_steps"] = profiled
            before = hook["ends"][profiled[0] // 2 : profiled[0] - 1]
            run["median_before_ms"] = _median_ms(before)
            later = hook["ends"][profiled[-1] + _WARM_STEPS :]
            run["median_after_ms"] = _median_ms(later)
            run["step_range_ms"] = _range_ms(_laps_ms(later), run.get("timed") or 0)
        if options.keep and (folder / "run").exists():
            copy = options.keep / program["name"]
            shutil.copytree(folder / "run", copy, dirs_exist_ok=True)
    return run


def _run(
    program: dict[str, Any],
    options: argparse.Namespace,
    folder: Path,
    launch: list[str],
    profile: dict[str, int],
) -> dict[str, Any]:
    """Run a program; return its exit status, seconds, output, and what the hook saw."""
    name = program["name"]
    hook = {
        "call": program["step_call"],
        "calls": program["calls_per_step"],
        "out": str(folder),
        "profile": profile,
    }
    environment = os.environ | {
        "CORPUS": str(options.corpus),
        "PYTHON": sys.executable,
        "LAUNCH": " ".join(launch),
        "TOML": str(_HERE / "programs.toml"),
    }
    if name not in _NOT_HOOKED:
        environment |= {
            "STEP_HOOK": json.dumps(hook),
            "PYTHONPATH": str(_HERE / "hook"),
        }
    words = ["bash", str(options.corpus / "run_one.sh"), name]
    output, errors = folder / "stdout", folder / "stderr"
    began = time.monotonic()
    with output.open("wb") as out, errors.open("wb") as err:
        child = subprocess.Popen(
            [*words, "tiny"] if options.tiny else words,
            env=environment,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            status: int | str = child.wait(options.each)
        except subprocess.TimeoutExpired:
            status = "timeout"
            os.killpg(child.pid, 9)
            child.wait()
    hooks = [
        json.loads(path.read_text()) for path in sorted(folder.glob("hook-*.json"))
    ]
    return {
        "status": status,
        "seconds": round(time.monotonic() - began, 1),
        "output": _NUMBERS.sub(b"", output.read_bytes()).decode(errors="replace"),
        "errors": errors.read_text(errors="replace")[-600:],
        "hooks": hooks,
    }


def _of_run(folder: Path) -> dict[str, Any]:
    """Return what a run folder tells of its first rank."""
    try:
        rank = json.loads((folder / "run.json").read_text())["ranks"][0]
    except (OSError, LookupError, ValueError):
        return {"state": "no run folder"}
    trace = rank.get("trace") or {}
    result = {
        "state": rank.get("state"),
        "counted_steps": rank.get("steps"),
        "traced_steps": len(trace.get("steps", [])),
        "window": trace.get("window"),
        "step_ms": (rank.get("step_time") or {}).get("ms"),
        "timed": (rank.get("step_time") or {}).get("steps"),
        "pause_s": (rank.get("pause") or {}).get("seconds"),
        "missing": [entry["what"] for entry in rank.get("missing", [])],
        "first_step": trace.get("first_step") or 0,
        "trace_facts": {
            key: trace[key] for key in trace if key not in ("steps", "file")
        },
    }
    files = sorted(folder.glob("rank-0.trace.json*"))
    return result | (_gpu_work(files[0]) if files else {})


def _gpu_work(file: Path) -> dict[str, Any]:
    with gzip.open(file) as stream:
        events = json.load(stream)["traceEvents"]
    launched = {
        event["args"].get("correlation")
        for event in events
        if event.get("cat") in _LAUNCHES
    }
    # Work that was queued before the trace belongs to none of its steps.
    work = [
        event["dur"]
        for event in events
        if event.get("cat") in _GPU_WORK
        and event["args"].get("correlation") in launched
    ]
    megabytes = round(file.stat().st_size / 1e6, 1)
    return {"gpu_ms": sum(work) / 1e3, "kernels": len(work), "trace_mb": megabytes}


def _laps_ms(ends: list[float]) -> list[float]:
    return [(after - before) * 1e3 for before, after in pairwise(ends)]


def _median_ms(ends: list[float]) -> float | None:
    laps = _laps_ms(ends)
    return round(statistics.median(laps), 4) if laps else None


def _range_ms(laps: list[float], steps: int) -> list[float] | None:
    """Return the least and the most mean of that number of successive steps."""
    starts = range(len(laps) - steps + 1) if steps else ()
    means = [statistics.fmean(laps[start : start + steps]) for start in starts]
    return [round(min(means), 4), round(max(means), 4)] if means else None


def _line(result: dict[str, Any]) -> str:
    plain, recorded = result["plain"][0], result["recorded"][0]
    shown = {key: value for key, value in recorded.items() if key not in _LONG}
    return (
        f"{result['name']}: plain {plain['status']} {plain.get('step_ms')} ms,"
        f" gpu {plain.get('gpu_ms')}; {shown}; same {result['output_is_the_same']}"
    )


if __name__ == "__main__":
    main()
