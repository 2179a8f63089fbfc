"""Baselines: known findings are hidden unless they grew by more than a tenth."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SICK = ROOT / "fixtures" / "copies" / "trace.json.gz"
OTHER = ROOT / "fixtures" / "attn_mask_fmha" / "trace.json.gz"
OOM = ROOT / "fixtures" / "twins" / "oom_fragmented" / "snapshot.pickle.gz"


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    file = tmp_path / "known.json"
    answer = traceq("lint", SICK, "--write-baseline", file)
    assert answer.status == 0, answer.err
    return file


def change(file: Path, code: str, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    for entry in content["findings"]:
        if entry["code"] == code:
            edit(entry)
    file.write_text(json.dumps(content))


def codes(out: str) -> set[str]:
    (recording,) = json.loads(out)["recordings"]
    return {finding["code"] for finding in recording["findings"]}


def test_what_is_listed_is_hidden_and_counted(baseline: Path) -> None:
    answer = traceq("lint", SICK, "--baseline", baseline, "--format", "concise")

    assert answer.status == 0
    assert "8 findings hidden: they are in the baseline, not grown" in answer.out
    assert "CPY003" not in answer.out


def test_writing_a_baseline_fails_on_nothing_and_says_where(tmp_path: Path) -> None:
    answer = traceq("lint", SICK, "--write-baseline", tmp_path / "known.json")

    assert answer.status == 0
    assert f"traceq: 8 findings written to {tmp_path}" in answer.err


def test_a_baseline_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    file = tmp_path / "known.json"

    answer = traceq("lint", SICK, "--baseline", file, "--format", "concise")

    assert answer.status == 1
    assert "CPY003" in answer.out
    assert f"{file} is not there: as an empty baseline it hides nothing" in answer.err


def test_what_is_new_is_shown(baseline: Path) -> None:
    answer = traceq("lint", OTHER, "--baseline", baseline, "--format", "json")

    assert answer.status == 1
    assert codes(answer.out) == {"ATT001", "FUS001", "LCH004"}


def test_what_costs_a_tenth_more_is_shown_with_what_it_was(baseline: Path) -> None:
    change(baseline, "CPY003", lambda entry: entry.update(saves_ns=1000))

    answer = traceq("lint", SICK, "--baseline", baseline, "-v")

    assert answer.status == 1
    assert re.search(r"before +1.00 µs a step", answer.out)


def test_what_happens_a_tenth_more_often_is_shown(baseline: Path) -> None:
    change(baseline, "CPY002", lambda entry: entry.update(count=4))

    answer = traceq("lint", SICK, "--baseline", baseline, "--format", "json")

    assert codes(answer.out) == {"CPY002"}


def test_memory_that_grows_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    traceq("lint", OOM, "--write-baseline", file)
    assert traceq("lint", OOM, "--baseline", file).status == 0
    change(file, "MEM010", lambda entry: entry.update(cost_bytes=1 << 20))

    assert traceq("lint", OOM, "--baseline", file).status == 1


def test_what_is_fixed_leaves_the_baseline_when_it_is_written_again(
    baseline: Path,
) -> None:
    traceq("lint", OTHER, "--write-baseline", baseline, "--overwrite")

    known = json.loads(baseline.read_text())["findings"]
    assert {entry["code"] for entry in known} == {"ATT001", "FUS001", "LCH004"}


def test_a_baseline_of_an_older_version_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    file.write_text('{"version": 1, "known": {}}')

    words = ("lint", OTHER, "--write-baseline", file, "--overwrite")
    assert traceq(*words).status == 0
    assert json.loads(file.read_text())["version"] == 2


def test_only_a_baseline_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text('{"mine": 1}')

    answer = traceq("lint", SICK, "--write-baseline", file)

    assert answer.status == 2
    assert "is not a baseline" in answer.err
    assert file.read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "is not a baseline"),
        ("[]", "is not a baseline"),
        ('{"version": 2, "findings": [{"code": "a"}]}', "is not a baseline"),
        ('{"version": 2, "known": {}}', "is not a baseline"),
        ('{"version": 1, "known": {}}', "is a baseline of version 1, not 2: write it"),
    ],
)
def test_what_is_not_a_baseline_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    file.write_text(text)

    answer = traceq("lint", SICK, "--baseline", file)

    assert answer.status == 2
    assert why in answer.err


def test_a_baseline_is_the_same_whenever_it_is_written(baseline: Path) -> None:
    before = baseline.read_bytes()
    traceq("lint", SICK, "--write-baseline", baseline)

    assert baseline.read_bytes() == before


def test_json_counts_what_is_hidden(baseline: Path) -> None:
    out = traceq("lint", SICK, "--baseline", baseline, "--format", "json").out

    assert json.loads(out)["recordings"][0]["in_baseline"] == 8
