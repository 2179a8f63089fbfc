"""Rules are listed and shown without importing them; what is shown is never old."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from linting import bundled_rules

from traceq.common.locations import KEPT_PAGES
from traceq.report import rule_index, rule_pages

if TYPE_CHECKING:
    from pathlib import Path

PACK = '''
from dataclasses import dataclass
from traceq.linter import Rule

@dataclass(frozen=True)
class Unwanted(Rule):
    """{summary}"""

    code = "USR001"
'''
LONG_AGO_NS = 1_000_000_000_000_000_000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of its own; the sources have been as they are for long."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRACEQ_CACHE", str(folder))
    monkeypatch.setattr(rule_index, "_UNSETTLED_NS", 0)
    return folder


def write_pack(folder: Path, summary: str, changed_ns: int = LONG_AGO_NS) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "unwanted.py"
    file.write_text(PACK.format(summary=summary))
    os.utime(file, ns=(changed_ns, changed_ns))
    return folder


def test_the_list_from_the_sources_is_that_of_the_rules() -> None:
    assert rule_pages.listing(rule_index.listed()) == rule_pages.listing(
        bundled_rules()
    )


def test_pages_are_those_of_the_rules_when_made_and_when_kept(cache: Path) -> None:
    pages = {code: rule_pages.page(rule) for code, rule in bundled_rules().items()}

    made, retained = rule_index.whole(), rule_index.whole()

    assert len(list(cache.glob(KEPT_PAGES))) == 1
    for found in (made, retained):
        assert {code: card.page for code, card in found.items()} == pages


@pytest.mark.usefixtures("cache")
def test_a_changed_pack_has_a_new_page(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack", "Says one thing.")
    before = rule_index.whole([pack])["USR001"].summary()
    # As long as before: only the time of the file tells, to Python in whole seconds.
    write_pack(pack, "Says two thing.", LONG_AGO_NS + 1_000_000_000)

    assert before == "Says one thing."
    assert rule_index.whole([pack])["USR001"].summary() == "Says two thing."
    assert rule_index.listed([pack])["USR001"].summary() == "Says two thing."


def test_what_was_changed_just_now_is_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_index, "_UNSETTLED_NS", 10**30)

    rule_index.whole([write_pack(tmp_path / "pack", "Says one thing.")])

    assert not list(cache.glob(KEPT_PAGES))


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"SYN001": 1}', b"\xff"])
def test_a_broken_file_of_pages_is_written_again(cache: Path, content: bytes) -> None:
    whole = rule_index.whole()
    (file,) = cache.glob(KEPT_PAGES)
    file.write_bytes(content)

    assert rule_index.whole() == whole
    assert len(file.read_bytes()) > 10_000


@pytest.mark.real
def test_only_the_last_few_files_are_kept(cache: Path, tmp_path: Path) -> None:
    for number in range(10):
        rule_index.whole([write_pack(tmp_path / f"pack{number}", "Says one thing.")])

    assert len(list(cache.glob(KEPT_PAGES))) == 8


def test_a_cache_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("TRACEQ_CACHE", str(file / "cache"))

    assert rule_index.whole()["SYN001"].page


@pytest.mark.real
@pytest.mark.usefixtures("cache")
def test_a_page_is_shown_again_without_polars() -> None:
    rule_index.whole()
    asked = [sys.executable, "-X", "importtime", "-m", "traceq", "rule", "SYN001"]

    done = subprocess.run(asked, capture_output=True, text=True, check=True)

    assert done.stdout == rule_pages.page(bundled_rules()["SYN001"])
    assert "traceq.report.rule_index" in done.stderr
    assert "polars" not in done.stderr
