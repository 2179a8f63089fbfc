"""One way to say where output goes, in all commands."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES

if TYPE_CHECKING:
    from pathlib import Path

TRACE = FIXTURE_TRACES["attn_mask_fmha"]
SNAPSHOT = CAPTURES.path("copies.snapshot.pickle.gz")
COMMANDS = {
    "lint": ("lint", TRACE),
    "summary": ("summary", TRACE),
    "memory": ("memory", SNAPSHOT),
    "diff": ("diff", TRACE, TRACE),
    "check": ("check", TRACE.parent),
    "query": ("query", TRACE, "SELECT count(*) AS n FROM kernels"),
    "rules": ("rules",),
    "rule": ("rule", "ATT001"),
    "schema": ("schema", "kernels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_result_goes_to_a_file_and_an_existing_one_is_refused(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "out"
    printed = traceq(*COMMANDS[name])

    first = traceq(*COMMANDS[name], "-o", file)
    again = traceq(*COMMANDS[name], "-o", file)
    over = traceq(*COMMANDS[name], "-o", file, "--overwrite")

    assert (first.out, first.err) == ("", printed.err)
    assert file.read_text(encoding="utf-8") == printed.out
    assert again.status == 2
    assert again.err == (
        f"traceq: {file} exists already: give another name, or --overwrite\n"
    )
    assert over.status == first.status == printed.status


def test_a_baseline_is_written_over_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    words = ("lint", TRACE, "--write-baseline", file)

    assert traceq(*words).status == 0
    assert "exists already" in traceq(*words).err
    assert traceq(*words, "--overwrite").status == 0


def test_a_new_rule_replaces_another_only_when_asked(tmp_path: Path) -> None:
    words = ("rules", "--new", "odd-thing", "--to", tmp_path)

    assert traceq(*words).status == 0
    assert "exists already" in traceq(*words).err
    assert traceq(*words, "--overwrite").status == 0


def on_terminal(*words: str, **environment: str) -> str:
    """Return what a command prints on a terminal."""
    ours, theirs = pty.openpty()
    known = {key: os.environ[key] for key in os.environ if key != "NO_COLOR"}
    with subprocess.Popen(
        [sys.executable, "-m", "traceq", *words],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=known | {"TERM": "xterm", "COLUMNS": "80"} | environment,
    ) as running:
        os.close(theirs)
        content = b""
        try:
            while block := os.read(ours, 1 << 16):
                content += block
        except OSError:  # its end
            pass
    os.close(ours)
    assert running.returncode in (0, 1)
    return content.decode()


@pytest.mark.real
def test_a_rule_page_is_rendered_on_a_terminal_and_markdown_elsewhere() -> None:
    shown, raw = on_terminal("rule", "ATT001"), on_terminal("rule", "ATT001", "--raw")
    page = traceq("rule", "ATT001").out

    assert "## What it does" in page
    assert raw.replace("\r\n", "\n") == page
    assert "##" not in shown
    assert "What it does" in shown
    assert "\x1b" not in on_terminal("rule", "ATT001", NO_COLOR="1")


def test_colour_can_be_forced_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("lint", FIXTURE_TRACES["copies"], "--format", "concise")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert "\x1b[33mCPY003" in traceq(*words).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in traceq(*words).out


@pytest.mark.slow
def test_severity_and_changes_have_colours_on_a_terminal_only() -> None:
    other = FIXTURE_TRACES["twins/copies_fixed"]
    words = ("diff", str(FIXTURE_TRACES["copies"]), str(other))
    warning = "\x1b[1;33mATT001 masked-attention-fallback\x1b[0m"

    assert warning in on_terminal("lint", str(TRACE), "-v")
    assert "\x1b[33mATT001\x1b[0m" in on_terminal(
        "lint", str(TRACE), "--format", "concise"
    )
    changes = on_terminal(*words)
    assert "\x1b[32m  -7.19 ms\x1b[0m" in changes
    assert "\x1b[31m+" in changes
    for quiet in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_terminal("lint", str(TRACE), **quiet)
    assert "\x1b" not in traceq(*words).out


def test_each_cause_in_the_bar_has_its_own_glyph() -> None:
    bar = traceq("lint", "-v", FIXTURE_TRACES["python_in_step"]).out.split("\n\n")[0]
    legend = bar[bar.index("  █ ") :].split(", ")[:-1]

    glyphs = [part.split()[0] for part in legend]

    assert {"p Python code", "o operator dispatch"} <= {
        part.strip().rsplit(" ", 1)[0].replace("\n", " ") for part in legend
    }
    assert len({*glyphs}) == len(glyphs) > 5
