"""Packs of rules run if they are the user's own, or asked for; a report names them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from test_lint import write_rule

from traceq.linter.pack import load_rules

if TYPE_CHECKING:
    from pathlib import Path

TRACE = ROOT / "fixtures" / "twins" / "norm_fused" / "trace.json.gz"
COMMANDS = [
    ("lint", TRACE),
    ("diff", TRACE, TRACE),
    ("check", TRACE.parent),
    ("rules",),
]
# Importing it leaves a file behind, which is how one sees that it ran.
PACK = "from pathlib import Path\n(Path(__file__).parent / 'ran').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder two below a configuration with a pack; work in it."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "rule.py").write_text(PACK)
    (tmp_path / "traceq.toml").write_text("packs = ['pack']\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return inner


def ran(tmp_path: Path) -> bool:
    return (tmp_path / "pack" / "ran").exists()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_pack_above_the_folder_does_not_run(
    words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    answer = traceq(*words)

    assert folder.is_dir()
    assert not ran(tmp_path)
    assert f"{tmp_path / 'traceq.toml'} is outside of this folder" in answer.err
    assert "give --rules FOLDER or --config FILE" in answer.err
    assert "with rules of" not in answer.out


def test_a_pack_above_the_repository_does_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / ".git").mkdir()

    answer = traceq("rules")

    assert not ran(tmp_path)
    assert "is outside of this repository" in answer.err


@pytest.mark.parametrize("words", COMMANDS[:3], ids=lambda words: words[0])
def test_a_pack_of_the_repository_runs_and_is_named_first(
    words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()

    answer = traceq(*words)

    assert folder.is_dir()
    assert ran(tmp_path)
    assert answer.out.startswith(f"with rules of {tmp_path / 'pack'}\n")
    assert answer.err == ""


def test_a_pack_of_the_folder_itself_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    answer = traceq("lint", TRACE)

    assert folder.is_dir()
    assert ran(tmp_path)
    assert answer.out.startswith("with rules of pack\n")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)
def test_a_pack_of_another_user_does_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.chown(tmp_path / "traceq.toml", 12345, -1)

    answer = traceq("rules")

    assert folder.is_dir()
    assert not ran(tmp_path)
    assert "belongs to another user" in answer.err


@pytest.mark.parametrize("option", ["--rules", "--config"])
def test_a_pack_that_is_asked_for_runs(
    option: str, folder: Path, tmp_path: Path
) -> None:
    given = tmp_path / ("pack" if option == "--rules" else "traceq.toml")

    answer = traceq("lint", TRACE, option, given)

    assert folder.is_dir()
    assert ran(tmp_path)
    assert answer.out.startswith(f"with rules of {tmp_path / 'pack'}\n")


def test_json_has_no_line_before_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()

    answer = traceq("lint", TRACE, "--format", "json")

    assert folder.is_dir()
    assert answer.out.startswith("{")


def test_a_rule_that_is_edited_twice_in_a_second_is_the_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found = []
    for code in ("USR001", "USR002"):
        pack = write_rule(tmp_path / "pack", code=code)
        # As Python sees it: of the same second and size.
        os.utime(pack / "tooloud.py", (1_000_000_000, 1_000_000_000))
        found += [one for one in load_rules([pack]) if one.startswith("USR")]

    assert found == ["USR001", "USR002"]
