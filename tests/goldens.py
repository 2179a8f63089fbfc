"""Texts that someone has read: golden files, and the blocks of the README.

``make goldens`` runs the tests marked ``golden`` with UPDATE_GOLDEN=1, which writes
them again: read the difference before you commit it.
"""

from __future__ import annotations

import os
import re

import pytest
from recordings import ROOT

from traceq import __version__

GOLDEN = ROOT / "tests" / "golden"
README = ROOT / "README.md"


def assert_golden(name: str, found: str) -> None:
    """Compare a text with a golden file, or write it there."""
    file = GOLDEN / name
    found = found.replace(f'"traceq": "{__version__}"', '"traceq": "VERSION"')
    if _updating():
        file.write_text(found, encoding="utf-8")
    assert file.is_file(), f"{file} is missing: run make goldens, and read it"
    assert found == file.read_text(encoding="utf-8")


def assert_block(mark: str, found: str) -> None:
    """Compare a text with a block of the README, or write it there."""
    if _updating():
        page = README.read_text(encoding="utf-8").replace(block(mark), found)
        README.write_text(page, encoding="utf-8")
    assert found == block(mark)


def block(mark: str) -> str:
    """Return what stands between two marks of the README, without its fence."""
    pattern = rf"<!-- {mark} -->\n(```\n)?(?P<text>.*?)(?(1)```\n)<!-- /{mark} -->"
    (found,) = re.finditer(pattern, README.read_text(encoding="utf-8"), re.DOTALL)
    return found["text"]


def _updating() -> bool:
    if not os.environ.get("UPDATE_GOLDEN"):
        return False
    if os.environ.get("CI"):
        pytest.fail(
            "goldens are not written where CI is set: run make goldens yourself"
        )
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail("goldens are written by one process: run make goldens")
    return True
