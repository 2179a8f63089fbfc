"""The recordings that tests look at; whoever asks in one process gets the same one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from captures import read_captures

from traceq.formats.snapshot import read_snapshot
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from traceq.model.snapshot import Snapshot
    from traceq.model.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = read_captures(ROOT / "fixtures" / "captures")
GPU_BOUND = [name for name, busy in CAPTURES.gpu_busy.items() if busy > 0.9]
# Files which are not ours to give away: other people's, and pairs for comparison.
SHARED = ROOT.parent / "shared"
_PUBLIC = SHARED / "traces" / "public"
_FOLDERS = {"public": _PUBLIC, "pairs": SHARED / "pairs"}

FIXTURE_TRACES = {
    path.parent.relative_to(ROOT / "fixtures").as_posix(): path
    for path in sorted((ROOT / "fixtures").rglob("trace.json.gz"))
}
"""The traces of fixtures by name, whole ones and those that were made small."""
PUBLIC = {
    f"public/{path.name.removesuffix('.json.gz')}": path
    for path in sorted(_PUBLIC.glob("*.json.gz"))
    if not path.name.startswith("not_")
}
"""Other people's traces by name, where they are there."""
JOBS = {
    folder.name: sorted(folder.glob("*.json.gz"))
    for folder in sorted((SHARED / "ranks").glob("*"))
    if list(folder.glob("*.json.gz"))
}
"""Other people's jobs of several ranks by name, where they are there."""
MORE_JOBS = {
    folder.name: sorted(folder.glob("*.json.gz"))
    for folder in sorted((SHARED / "jobs").glob("*"))
    if list(folder.glob("*.json.gz"))
}
"""More of them, whose ranks are not read one by one."""
RANKS = {
    f"ranks/{name}/{path.name.removesuffix('.json.gz')}": path
    for name, paths in JOBS.items()
    for path in paths
}
SERVING = {
    f"serving/{path.name.removesuffix('.json.gz')}": path
    for path in sorted((SHARED / "serving").glob("*.json.gz"))
}
WHOLE_TRACES = CAPTURES.paths(".trace.json.gz") | PUBLIC | RANKS | SERVING
"""All traces as they were recorded."""
TRACES = WHOLE_TRACES | FIXTURE_TRACES
"""All traces by name, each once: captures that fixtures hold have the same name."""
NAMES = {path: name for name, path in TRACES.items()}
OWN_SNAPSHOTS = CAPTURES.paths(".snapshot.pickle.gz")
PUBLIC_SNAPSHOTS = {
    f"public/{path.name.removesuffix('.pickle.gz')}": path
    for path in sorted(_PUBLIC.glob("*.pickle.gz"))
}
NSYS = {path.stem: path for path in sorted((SHARED / "nsys").glob("*.sqlite"))}
"""Exports of Nsight Systems, by name."""
# The largest of them, which is like the next in all but its size.
_LARGEST_EXPORT = "h100_2gpu_1s"
"""Other people's exports of Nsight Systems by name, where they are there."""
SNAPSHOTS = OWN_SNAPSHOTS | PUBLIC_SNAPSHOTS
"""All snapshots by name."""


SAMPLE = {
    *("copies", "graph_replay", "python_in_step", "recompile", "varying_length"),
    *("sweep/seq-512", "twins/adam_fused", "twins/moe_batched", "tutorial/5"),
    *("optimizer_fused", "lines/vocab_misaligned"),
    *("public/a100_alexnet", "public/a100_cuda_event_sync", "public/a100_triton"),
    *("public/a100_vit_graph", "public/compact_sampled_rank0"),
    *("public/cpu_only_rank34", "public/legacy_bare_list", "public/mi250_minitoy"),
    *("public/v100_tp2_rank0", "serving/sglang_decode"),
}
"""Small traces, each of another kind: `make test` reads these, `make slow` all."""


LEFT_OUT = set[str]()
"""Marks whose tests do not run: conftest.py fills it in before tests are collected."""


def by_trace(
    files: Mapping[str, Path], usual: AbstractSet[str] = SAMPLE
) -> list[object]:
    """Return a parameter for each file, slow but for the usual ones.

    The slow ones are left out where none would run: they are most of all tests.
    """
    return [
        pytest.param(
            path,
            id=name,
            marks=[] if name in usual else [pytest.mark.slow],
        )
        for name, path in files.items()
        if name in usual or "slow" not in LEFT_OUT
    ]


def exports() -> list[object]:
    """Return a parameter for each export of Nsight Systems, slow for the largest."""
    return [
        pytest.param(
            path, id=name, marks=[pytest.mark.slow] * (name == _LARGEST_EXPORT)
        )
        for name, path in NSYS.items()
    ]


def path_of(file: str) -> Path:
    """Return where a file of a capture is, or of a folder of shared files, or skip."""
    folder, _, name = file.rpartition("/")
    if not folder:
        return CAPTURES.path(name)
    path = _FOLDERS[folder] / name
    if not path.is_file():
        pytest.skip(f"{file} is not ours to give away, and ../shared is not there")
    return path


def saved_ns(sick: str, twin: str) -> int:
    """Return what a step of the repaired twin takes less, as was measured."""
    return CAPTURES.step_ns(sick) - CAPTURES.step_ns(twin)


def printed(name: str) -> dict[str, Any]:
    """Return what the program of a capture printed at its end, not being profiled."""
    line = path_of(f"{name}.log").read_text(encoding="utf-8").splitlines()[-1]
    document: dict[str, Any] = json.loads(line[line.index("{") :])
    return document


def job(name: str) -> list[Path]:
    """Return the traces of a job of several ranks, or skip."""
    every = JOBS | MORE_JOBS
    if name not in every:
        pytest.skip(f"{name} is not ours to give away, and ../shared is not there")
    return every[name]


@cache
def loaded(path: Path) -> Trace:
    """Return a trace, read once."""
    return load(path)


@cache
def read(path: Path) -> Snapshot:
    """Return a snapshot, read once."""
    return read_snapshot(path)
