"""Packs of rules run if they are trusted, or asked for; a report names them."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from test_lint import write_rule

from traceq.linter import pack
from traceq.linter.pack import load_rules
from traceq.linter.trust import is_trusted

if TYPE_CHECKING:
    from collections.abc import Callable
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
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return inner


def ran(tmp_path: Path) -> bool:
    return (tmp_path / "pack" / "ran").exists()


@pytest.mark.real
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_pack_that_nobody_has_trusted_does_not_run(
    words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    answer = traceq(*words)

    assert folder.is_dir()
    assert not ran(tmp_path)
    assert f"{tmp_path / 'pack'} were not loaded" in answer.err
    assert "traceq rules --trust FOLDER, or give --rules FOLDER" in answer.err
    assert "with rules of" not in answer.out


@pytest.mark.parametrize("where", [".", "a/b"])
def test_a_repository_makes_no_pack_trusted(
    where: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path / where)

    answer = traceq("lint", TRACE)

    assert folder.is_dir()
    assert not ran(tmp_path)
    assert "were not loaded" in answer.err


@pytest.mark.real
@pytest.mark.parametrize("words", COMMANDS[:3], ids=lambda words: words[0])
def test_a_pack_that_was_trusted_once_runs_and_is_named_first(
    words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    output = traceq("rules", "--trust", tmp_path / "pack")

    answer = traceq(*words)

    assert folder.is_dir()
    assert "is trusted as it is now, with 1 file:" in output.out
    assert ran(tmp_path)
    assert answer.out.startswith(f"with rules of {tmp_path / 'pack'}\n")
    assert answer.err == ""


def test_trusting_a_pack_does_not_run_it(folder: Path, tmp_path: Path) -> None:
    traceq("rules", "--trust", tmp_path / "pack")

    assert folder.is_dir()
    assert not ran(tmp_path)


def _edited(pack: Path) -> None:
    (pack / "rule.py").write_text(PACK + "# changed\n")


def _added(pack: Path) -> None:
    (pack / "_other.py").write_text("")


def _renamed(pack: Path) -> None:
    (pack / "rule.py").rename(pack / "role.py")


@pytest.mark.parametrize("change", [_edited, _added, _renamed])
def test_a_pack_that_changes_is_no_longer_trusted(
    change: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    traceq("rules", "--trust", tmp_path / "pack")
    change(tmp_path / "pack")

    answer = traceq("lint", TRACE)

    assert folder.is_dir()
    assert not ran(tmp_path)
    assert "were not loaded" in answer.err


def test_a_pack_that_lies_elsewhere_is_trusted_by_its_content(
    folder: Path, tmp_path: Path
) -> None:
    traceq("rules", "--trust", tmp_path / "pack")
    (tmp_path / "pack").rename(tmp_path / "moved")
    (tmp_path / "traceq.toml").write_text("packs = ['moved']\n")

    traceq("lint", TRACE)

    assert folder.is_dir()
    assert (tmp_path / "moved" / "ran").exists()


@pytest.mark.parametrize("option", [(), ("--config", "../../traceq.toml")])
def test_no_pack_of_a_configuration_runs_if_that_is_asked_for(
    option: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    traceq("rules", "--trust", tmp_path / "pack")

    answer = traceq("lint", TRACE, "--no-packs", *option)

    assert folder.is_dir()
    assert not ran(tmp_path)
    assert answer.err == ""


def test_a_folder_that_is_no_pack_is_not_trusted(tmp_path: Path) -> None:
    answer = traceq("rules", "--trust", tmp_path / "none")

    assert answer.status == 2
    assert "is not a rule pack" in answer.err


def test_a_pack_as_large_as_a_disk_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceq.linter.trust._MOST_FILES", 3)
    traceq("rules", "--trust", tmp_path / "pack")
    for number in range(5):
        (tmp_path / "pack" / f"more{number}.py").write_text("")

    assert folder.is_dir()
    assert not is_trusted(tmp_path / "pack")
    assert "too large" in traceq("rules", "--trust", tmp_path / "pack").err


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
    traceq("rules", "--trust", tmp_path / "pack")

    answer = traceq("lint", TRACE, "--format", "json")

    assert folder.is_dir()
    assert answer.out.startswith("{")


def test_a_rule_that_is_edited_twice_in_a_second_is_the_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    result = []
    for code in ("USR001", "USR002"):
        folder = write_rule(tmp_path / "pack", code=code)
        # As Python sees it: of the same second and size.
        os.utime(folder / "tooloud.py", (1_000_000_000, 1_000_000_000))
        result += [
            load_rule
            for load_rule in load_rules([folder])
            if load_rule.startswith("USR")
        ]

    assert result == ["USR001", "USR002"]


def test_threads_that_load_rules_at_once_all_get_them() -> None:
    pack._own_rules.cache_clear()  # noqa: SLF001 - as in a process that has just begun

    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda _: len(load_rules()), range(16)))

    assert set(result) == {len(load_rules())}


@pytest.mark.parametrize(
    ("known", "now"),
    [
        ("traceq.linter.fused", "traceq.linter.fused_fix"),
    ],
)
def test_packs_find_what_has_moved_under_its_documented_name(
    known: str, now: str
) -> None:
    old, new = import_module(known), import_module(now)

    assert old.__all__
    for name in old.__all__:
        assert getattr(old, name) is getattr(new, name)
