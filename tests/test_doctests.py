"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest
from conftest import ROOT

MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "traceq").rglob("*.py")
    if "\n    >>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    ran = doctest.testmod(import_module(name))

    assert ran.attempted
    assert not ran.failed
