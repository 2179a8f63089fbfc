"""The line that shows how far a command is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from recordings import FIXTURE_TRACES

from traceq.cli.progress import LONG_RULES, Track
from traceq.common.progress import ProgressListener, report_progress, watched

WEIGHTS = {"reading": 20.0, "graph": 20.0, "rules": 50.0, "writing": 10.0}
TRACE = FIXTURE_TRACES["attn_mask_fmha"]


def test_phases_take_their_shares_of_the_way() -> None:
    track = Track(WEIGHTS)

    track.go("reading", 50, 100)
    assert track.reached == pytest.approx(0.1)
    track.go("graph", 1, 2)
    assert track.reached == pytest.approx(0.3)
    track.go("rules", 1, 2, "ATT001")
    assert track.reached == pytest.approx(0.65)
    track.go("writing", 0, 0)
    assert track.reached == pytest.approx(0.9)


def test_several_recordings_are_loaded_and_then_worked_on() -> None:
    track = Track(WEIGHTS)
    track.counts = {True: 2, False: 2}
    track.go("graph", 1, 2)
    assert track.reached == pytest.approx(0.15)

    track.go("reading", 1, 2)
    assert track.reached == pytest.approx(0.25)
    track.go("writing", 0, 0)
    assert track.reached == pytest.approx(0.65)
    track.go("rules", 0, 2)
    assert track.reached == pytest.approx(0.7)


def test_a_replay_moves_on_within_the_rule_that_asked_for_it() -> None:
    track = Track(WEIGHTS)
    codes = [f"AAA{at:03}" for at in range(40)] + ["HST001", "ZZZ001"]
    shown = []
    for done, code in enumerate(codes):
        track.go("rules", done, len(codes), code)
        shown.append(track.reached)
        if code == "HST001":
            track.go("replay", 1, 2)
            inside = track.reached

    whole = len(codes) + sum(LONG_RULES.values())
    assert shown[-1] - shown[-2] == pytest.approx(0.5 * 31 / whole)
    assert inside == pytest.approx((shown[-2] + shown[-1]) / 2)


def test_it_never_goes_back() -> None:
    track = Track(WEIGHTS)
    for phase, done in (("rules", 1), ("reading", 0), ("rules", 0), ("graph", 1)):
        track.go(phase, done, 2)

    assert track.reached == pytest.approx(0.65)


def test_only_who_watches_hears() -> None:
    heard: list[tuple[str, int, int, str]] = []

    report_progress("reading")

    class Listener(ProgressListener):
        def tell(self, phase: str, done: int, total: int, what: str) -> None:
            heard.append((phase, done, total, what))

    with watched(Listener()):
        report_progress("graph", 1, 2, "x")
    report_progress("rules")

    assert heard == [("graph", 1, 2, "x")]


@pytest.mark.real
@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
@pytest.mark.slow
def test_a_terminal_sees_phases_and_percents_that_grow_and_are_gone_at_the_end() -> (
    None
):
    out, err = _on_terminal("lint", str(TRACE), "--no-cache")
    text = re.sub(r"\x1b\[[0-9;?]*m", "", err.decode())
    percents = [int(match) for match in re.findall(r"(\d+)%", text)]
    assert "starting" in text
    assert all(before <= after for before, after in pairwise(percents))
    assert text.endswith("\x1b[2K")
    assert b"\x1b" not in out
    assert b"ATT001" in out


@pytest.mark.real
@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
@pytest.mark.slow
def test_who_wants_it_quiet_sees_no_progress() -> None:
    out, err = _on_terminal("--quiet", "lint", str(TRACE), "--no-cache")
    assert b"ATT001" in out
    assert err == b""


def _on_terminal(*words: str) -> tuple[bytes, bytes]:
    """Run traceq, and return its output and what a terminal sees of its errors."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "traceq", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    ) as running:
        os.close(theirs)
        out = running.stdout.read() if running.stdout else b""
        return out, _all_of(ours)


def _all_of(terminal: int) -> bytes:
    content = b""
    try:
        while block := os.read(terminal, 1 << 16):
            content += block
    except OSError:  # its end
        pass
    os.close(terminal)
    return content
