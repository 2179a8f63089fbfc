"""Lint of memory snapshots: alone, in run folders, in every format; drawn histories."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from conftest import ROOT
from linting import memory_findings, outcome

from traceq.analysis.memory.curve import memory_curve
from traceq.formats.log import log_lines
from traceq.model.lint_report import Allow
from traceq.model.recording import Recording
from traceq.testing import draw_history, load_history

if TYPE_CHECKING:
    from pathlib import Path

TRACE = ROOT / "fixtures" / "copies" / "trace.json.gz"
LEAK = """
region             [ProfilerStep#1][ProfilerStep#2]
weights           <500M
train.py:9 step      [64M    ]       [64M    ]
train.py:12 step         [{size}
train.py:12 step                         [{size}
"""
FULL = """
segment                <80M
train.py:9 main         [78M
oom train.py:12 main              [16M of 1M]
"""
CLEAN = """
region             [ProfilerStep#1][ProfilerStep#2]
weights           <500M
train.py:9 step      [64M    ]       [64M    ]
"""


def leak(size: str = "16M") -> str:
    return LEAK.format(size=size)


def written(path: Path, history: str) -> Path:
    content = pickle.dumps(draw_history(history), protocol=4)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def run_folder(folder: Path, histories: list[str], *, traced: bool) -> Path:
    """Write a run folder with a snapshot for each rank."""
    folder.mkdir()
    ranks: list[dict[str, Any]] = []
    for number, history in enumerate(histories):
        name = f"rank-{number}"
        written(folder / f"{name}.memory.pickle.gz", history)
        ranks.append(
            {
                "name": name,
                "rank": number,
                "state": "done",
                "trace": {"file": f"{name}.trace.json.gz"} if traced else None,
                "memory": {"file": f"{name}.memory.pickle.gz"},
                "missing": [],
            }
        )
        if traced:
            shutil.copy(TRACE, folder / f"{name}.trace.json.gz")
    manifest = {"format": 1, "command": ["python", "train.py"], "ranks": ranks}
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


# What is read.


@pytest.mark.parametrize("name", ["x.pickle", "x.pickle.gz", "x.pkl"])
def test_a_snapshot_is_linted_by_its_name(name: str, tmp_path: Path) -> None:
    answer = traceq("lint", "-v", written(tmp_path / name, leak()))

    assert answer.status == 1
    assert "MEM003 growing-memory (error)  16.0 MiB (3%)" in answer.out
    assert "memory peaks at 596 MiB allocated" in answer.out
    assert "MEM001, MEM002" in " ".join(answer.out.split())


def test_a_clean_snapshot_exits_with_nothing_found(tmp_path: Path) -> None:
    answer = traceq("lint", "-v", written(tmp_path / "x.pickle", CLEAN))

    assert answer.status == 0
    assert "no findings; 4 rules ran" in answer.out


def test_what_is_no_snapshot_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"weights": [1, 2]}))

    answer = traceq("lint", path)

    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert "not a memory snapshot" in answer.err


def test_a_run_is_linted_with_its_trace_and_its_snapshot(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [leak()], traced=True)

    answer = traceq("lint", "-v", run)

    assert "MEM003 growing-memory" in answer.out
    assert "CPY" in answer.out
    assert "steps of" in answer.out


def test_a_run_that_died_untraced_is_linted_by_its_snapshot(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [FULL], traced=False)

    answer = traceq("lint", "-v", run)

    assert answer.status == 1
    assert "MEM010 failed-allocation (error)" in answer.out


def test_ranks_with_the_same_finding_are_one_with_the_most(tmp_path: Path) -> None:
    histories = [leak("8M"), CLEAN, leak("32M")]
    run = run_folder(tmp_path / "run", histories, traced=True)

    answer = traceq("lint", "--select", "MEM003", run)

    assert answer.out.count("MEM003 growing-memory") == 1
    assert "32.0 MiB" in answer.out
    assert "0, 2; highest on 2" in answer.out


# What a finding costs.


def test_findings_on_memory_are_ordered_by_severity_and_bytes() -> None:
    history = f"{leak()}\noom train.py:13 step {' ' * 30} [16M of 1M]"

    findings = memory_findings(history, "MEM003", "MEM010")

    assert [finding.code for finding in findings] == ["MEM003", "MEM010"]


SCORES = """
matmul = at::_ops::bmm::call, model.py:20 attention, train.py:9 step
softmax = at::_ops::softmax_int::call, model.py:21 attention, train.py:9 step
region       [ProfilerStep#1                    ]
region        [forward            ][backward   ]
weights     <{weights}
matmul         [1M    ]
softmax            [1M                      ]
"""


def test_scores_that_are_a_small_part_of_the_memory_are_minor() -> None:
    scores = SCORES.replace("1M", "1G")
    (small,) = memory_findings(scores.format(weights="100G"), "MEM006")
    (large,) = memory_findings(scores.format(weights="8G"), "MEM006")

    assert (small.severity, large.severity) == ("info", "warning")


def test_the_least_cost_in_time_hides_no_memory() -> None:
    history = load_history(SCORES.format(weights="10M"))

    result = outcome(Recording("x", snapshots={0: history}), "MEM006", min_cost_us=1000)

    assert [finding.code for finding in result.findings] == ["MEM006"]
    assert result.below_min_cost == 0


def test_what_the_log_says_of_a_failed_allocation_is_its_evidence() -> None:
    log = log_lines("CUDA out of memory. Tried to allocate 16.00 MiB. GPU 0 has")
    recording = Recording("x", log=log, snapshots={0: load_history(FULL)})

    (finding,) = outcome(recording, "MEM010", "LOG006").findings

    assert finding.code == "MEM010"
    assert "log" in {entry.label for entry in finding.evidence}


def test_a_finding_on_memory_can_be_allowed_by_its_file() -> None:
    recording = Recording("x", snapshots={0: load_history(leak())})
    entry = Allow("MEM003", "a cache that fills up", where="train.py")

    result = outcome(recording, "MEM003", allow=(entry,))

    assert not result.findings
    assert [allowed.reason for allowed in result.allowed] == ["a cache that fills up"]


# How it is written.


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("concise", r"train\.py:12:1: MEM003 .*; 16\.0 MiB \(3%\)"),
        ("markdown", r"\| `train\.py:12 step` \| 16\.0 MiB \(3%\) \|"),
        ("github", "::error file=train.py,line=12,title=MEM003 growing-memory::"),
    ],
)
def test_a_format_writes_bytes_in_place_of_time(
    form: str, line: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "x.pickle", leak())

    answer = traceq("lint", "--format", form, path)

    assert re.search(line, answer.out)
    assert "/step" not in answer.out


def test_json_has_the_bytes_and_the_peak(tmp_path: Path) -> None:
    path = written(tmp_path / "x.pickle", leak())

    (recording,) = json.loads(traceq("lint", "--format", "json", path).out)[
        "recordings"
    ]

    (result,) = recording["findings"]
    assert result["cost_bytes"] == 16 << 20
    assert recording["memory"]["allocated"] == 596 << 20
    assert recording["facts"] is None


def test_sarif_has_the_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "x.pickle", leak())

    (run,) = json.loads(traceq("lint", "--format", "sarif", path).out)["runs"]

    (result,) = run["results"]
    assert result["properties"]["costBytes"] == 16 << 20
    assert "16.0 MiB (3%)" in result["message"]["text"]


@pytest.mark.real
def test_names_in_a_snapshot_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    history = leak().replace(
        "train.py:12 step", "tr\x1b[2J.py:12 step".replace("[", "")
    )
    path = written(tmp_path / "x.pickle", history)

    for form in ("full", "concise", "json", "sarif", "github", "markdown"):
        assert "\x1b" not in traceq("lint", "--format", form, path).out


def test_what_a_snapshot_has_lost_is_told(tmp_path: Path) -> None:
    content = draw_history(leak())
    # A ring buffer forgets the oldest events, the blocks are there all the same.
    last = content["device_traces"][0][-2:]
    passing = last[0] | {"addr": 1 << 50, "frames": []}
    content["device_traces"][0] = [
        *(passing | {"action": name} for name in ["alloc", "free_completed"] * 49),
        *last,
    ]
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))

    answer = traceq("lint", path)

    assert "the snapshot is incomplete" in answer.out


# Drawn histories.


def test_a_drawing_shows_who_holds_how_much_when() -> None:
    snapshot = load_history(
        """
        mm = at::_ops::mm::call, model.py:41 forward
        weights          <500M
        mm                 [64M ]
        train.py:12 main     [16M
        """
    )

    curve = memory_curve(snapshot)

    mib = [held >> 20 for held in curve["allocated"]]
    assert mib == [500, 564, 580, 516, 516]
    assert snapshot.frames["function"].to_list() == [
        "main",
        "at::_ops::mm::call",
        "forward",
    ]


def test_a_line_without_a_drawing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is drawn in the line"):
        draw_history("train.py:9 main")


def test_a_segment_ends_empty() -> None:
    with pytest.raises(ValueError, match="while something is in it"):
        draw_history("segment [64M ]\na.py:1 f [64M")


def test_without_stacks_no_line_is_advised() -> None:
    history = """
        segment                <80M
        [78M
        oom               [16M of 1M]
        """
    (finding,) = memory_findings(history, "MEM010")

    assert "record stacks" in finding.advice
