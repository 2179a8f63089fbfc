"""Texts that someone has read: golden files, and blocks of the README and the docs.

``make goldens`` runs the tests marked ``golden`` with UPDATE_GOLDEN=1, which writes
them again: read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from recordings import ROOT

from traceq import __version__

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN = ROOT / "tests" / "golden"
# How many rules ran: a new rule would rewrite every block.
_COUNTS = re.compile(r"\d+ rules ran(, \d+ (skipped|do(es)? not apply))*(: .*\(\d+\))?")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def assert_golden(name: str, text: str) -> None:
    """Compare a text with a golden file, or write it there."""
    file = GOLDEN / name
    text = text.replace(f'"traceq": "{__version__}"', '"traceq": "VERSION"')
    if updating():
        file.write_text(text, encoding="utf-8")
    assert file.is_file(), f"{file} is missing: run make goldens, and read it"
    assert text == file.read_text(encoding="utf-8")


def assert_block(mark: str, text: str) -> None:
    """Compare a text with a block of a page, or write it there.

    Counts of rules are left out of it.
    """
    text = _COUNTS.sub("…", text)
    if updating():
        page, match = _page_with(mark)
        begin, end = match.span("text")
        page.write_text(match.string[:begin] + text + match.string[end:], "utf-8")
    assert text == block(mark)


def block(mark: str) -> str:
    """Return what stands between two marks of a page, without its fence."""
    return _page_with(mark)[1]["text"]


def _page_with(mark: str) -> tuple[Path, re.Match[str]]:
    pattern = rf"<!-- {mark} -->\n(```\w*\n)?(?P<text>.*?)(?(1)```\n)<!-- /{mark} -->"
    ((page, match),) = (
        (page, found)
        for page in PAGES
        for found in re.finditer(pattern, page.read_text(encoding="utf-8"), re.DOTALL)
    )
    return page, match


def updating() -> bool:
    """Say whether texts are written again; refused where nobody reads them."""
    if not os.environ.get("UPDATE_GOLDEN"):
        return False
    if os.environ.get("CI"):
        pytest.fail(
            "goldens are not written where CI is set: run make goldens yourself"
        )
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail("goldens are written by one process: run make goldens")
    return True
