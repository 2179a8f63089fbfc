"""Evaluation of coding agents: how much of a twin's saving they reach.

python benchmarks/agents/harness.py record FOLDER            # GPU and torch alone
python benchmarks/agents/harness.py edit FOLDER --agent "python .../scripted.py literal"
python benchmarks/agents/harness.py measure FOLDER           # GPU and torch alone

Each program has an illness and, with --fixed, its repair. An agent is any command that
reads a prompt from standard input and edits the working directory. It gets the program
with (nothing) no more, (trace) the raw trace, (agent) traceq's format for agents.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIXTURES = ROOT / "fixtures" / "programs"
ARMS = ("nothing", "trace", "agent")
_TIME = re.compile(r"plain: ([\d.]+) ms/step")
_TASK = (
    "Make the training step of {file} in this folder faster on a GPU. Keep what it"
    " computes. Edit the file; do not run it."
)
# A program may be this much slower than it was before its edit counts as wrong.
_SLOWER = 1.05
_TIMEOUT_S = 600
_RAW = 200_000


class Program(NamedTuple):
    """A sick program, and whether its repair is an edit that needs no decision."""

    name: str
    folder: Path
    mechanical: bool


PROGRAMS = (
    *(
        Program(name, HERE / "programs", mechanical=True)
        for name in ("adamw", "distributions", "rms_norm", "tf32")
    ),
    Program("optimizer_loop_sync", FIXTURES, mechanical=True),
    *(
        Program(name, FIXTURES, mechanical=False)
        for name in (
            "attention_with_dense_mask",
            "copies",
            "forward_hooks",
            "moe_loop",
            "norm_dtype_mismatch",
            "python_in_step",
            "vocab_misaligned",
        )
    ),
)


def chosen_programs(only: list[str]) -> list[Program]:
    """Return the programs of these names; all of them if there is no name."""
    return [row for row in PROGRAMS if not only or row.name in only]


def record(folder: Path, only: list[str]) -> None:
    """Copy each program into a folder of its own, and record it beside."""
    for program in chosen_programs(only):
        place = folder / program.name
        sick = place / "sick"
        sick.mkdir(parents=True, exist_ok=True)
        shutil.copy(program.folder / f"{program.name}.py", sick)
        shutil.copy(FIXTURES / "loops.py", sick)
        shutil.rmtree(place / "run", ignore_errors=True)
        words = [sys.executable, str(ROOT / "collect"), "--out", str(place)]
        words += ["--name", "run", "--", sys.executable, f"{program.name}.py"]
        done = subprocess.run(words, cwd=sick, check=False, timeout=_TIMEOUT_S)
        print(f"{program.name}: recorded, exit {done.returncode}", flush=True)


def prompt_of(program: Program, place: Path, arm: str) -> str:
    """Return what an agent is told."""
    task = _TASK.format(file=f"{program.name}.py")
    if arm == "nothing":
        return task
    if arm == "trace":
        traces = sorted((place / "run").glob("*trace*.json*"))
        text = _unpacked(traces[0]) if traces else ""
        return f"{task}\n\nThe profiler's trace:\n{text[:_RAW]}"
    words = [sys.executable, "-m", "traceq", "lint", "--format", "agent", "--root"]
    words += [str(place / "sick"), str(place / "run")]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return f"{task}\n\nWhat traceq reports of it:\n{done.stdout}"


def _unpacked(trace: Path) -> str:
    import gzip  # noqa: PLC0415 - one arm needs it

    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rt", encoding="utf-8") as stream:
        return str(stream.read(_RAW))


def edit(folder: Path, agent: str, name: str, arms: tuple[str, ...]) -> None:
    """Let an agent edit a copy of each recorded program, once for each arm."""
    for program in PROGRAMS:
        place = folder / program.name
        if not place.is_dir():
            continue
        for arm in arms:
            copy = place / f"{name}-{arm}"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(place / "sick", copy)
            prompt = prompt_of(program, place, arm)
            done = subprocess.run(
                shlex.split(agent), cwd=copy, input=prompt, text=True, check=False
            )
            about = {"characters": len(prompt), "status": done.returncode}
            (place / f"{name}-{arm}.json").write_text(json.dumps(about))
            print(f"{program.name} {arm}: {len(prompt)} characters", flush=True)


def step_ms(folder: Path, file: str, *words: str) -> float | None:
    """Return the step time that a program prints; None if it fails."""
    done = subprocess.run(
        [sys.executable, file, *words],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    match = _TIME.search(done.stdout)
    return float(match[1]) if match and done.returncode == 0 else None


def measure(folder: Path, repeats: int, only: list[str]) -> list[dict[str, Any]]:
    """Time the programs, their twins and their edited copies in turn."""
    rows = []
    for program in chosen_programs(only):
        place, file = folder / program.name, f"{program.name}.py"
        copies = sorted(path.name for path in place.glob("*-*") if path.is_dir())
        times: dict[str, list[float | None]] = {}
        for _ in range(repeats):
            times.setdefault("sick", []).append(step_ms(place / "sick", file))
            twin = step_ms(place / "sick", file, "--fixed")
            times.setdefault("twin", []).append(twin)
            for copy in copies:
                times.setdefault(copy, []).append(step_ms(place / copy, file))
        row = {"program": program.name, "mechanical": program.mechanical}
        rows.append(row | {"copies": judged(times, place)})
        print(json.dumps(rows[-1]), flush=True)
    (folder / "results.json").write_text(json.dumps(rows, indent=2) + "\n")
    return rows


def judged(times: dict[str, list[float | None]], place: Path) -> dict[str, Any]:
    """Return for each copy the share of the twin's saving that it reaches."""
    middle = {
        name: statistics.median(known) if (known := _all(of)) else None
        for name, of in times.items()
    }
    sick, twin = middle.pop("sick"), middle.pop("twin")
    verdict: dict[str, Any] = {"sick_ms": sick, "twin_ms": twin}
    for name, ms in middle.items():
        about = place / f"{name}.json"
        report = json.loads(about.read_text()) if about.is_file() else {}
        wrong = ms is None or (sick is not None and ms > sick * _SLOWER)
        reached = None
        if ms is not None and sick and twin and sick > twin:
            reached = (sick - ms) / (sick - twin)
        verdict[name] = {"ms": ms, "reached": reached, "wrong": wrong, **report}
    return verdict


def _all(times: list[float | None]) -> list[float]:
    known = [duration for duration in times if duration is not None]
    return known if len(known) == len(times) else []


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["record", "edit", "measure"])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--agent", default=f"{sys.executable} {HERE}/scripted.py literal"
    )
    parser.add_argument("--name", default="literal", help="name of the agent")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=[*ARMS])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="*", default=[], help="programs to record or measure"
    )
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.what == "record":
        record(folder, chosen.only)
    elif chosen.what == "edit":
        edit(folder, chosen.agent, chosen.name, tuple(chosen.arms))
    else:
        measure(folder, chosen.repeats, chosen.only)


if __name__ == "__main__":
    main()
