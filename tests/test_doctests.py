"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest
from conftest import ROOT
from linting import rule_module

MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "traceq").rglob("*.py")
    if "\n    >>> " in file.read_text(encoding="utf-8")
)
SHARED = sorted(
    f"{file.parent.name}.{file.stem}"
    for file in (ROOT / "rules").glob("*/_*.py")
    if "\n    >>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    ran = doctest.testmod(import_module(name))

    assert ran.attempted
    assert not ran.failed


@pytest.mark.parametrize("name", SHARED)
def test_examples_of_what_rules_share_hold(name: str) -> None:
    ran = doctest.testmod(rule_module(name))

    assert ran.attempted
    assert not ran.failed
