"""Kinds of tests, real and slow: told by what a test does.

Names count in the code of a test, of its fixtures and of the helpers that they call:
who reads a recording or starts a process need not say so.
"""

from __future__ import annotations

import os
import re
from functools import cache
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, TypeGuard

import pytest
from recordings import ROOT, SHARED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_TESTS = str(ROOT / "tests")
_RECORDINGS = (f"{ROOT / 'fixtures'}{os.sep}", f"{SHARED}{os.sep}")
# Stands for the path of a recording, whatever its name.
_A_FILE = "a recording"
_READERS = {_A_FILE, "CAPTURES"}
_PROCESSES = {"subprocess", "LocalCluster", "ProcessPoolExecutor", "Popen"}
_BROWSERS = {"browser"}
_OF_FILE = re.compile(r"^pytestmark = (\[.*?^\]|.*?$)", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"mark\.(\w+)")
# Most tests are of a function with many parameters.
_OF_FUNCTIONS: dict[object, frozenset[str]] = {}


def left_out(expression: str) -> set[str]:
    """Return the marks whose tests an expression of `-m` leaves out.

    >>> sorted(left_out("not real and not slow"))
    ['real', 'slow']
    >>> left_out("slow or not real")
    set()
    """
    terms = expression.split(" and ")
    if not all(re.fullmatch(r"not \w+", term) for term in terms):
        return set()
    return {term.removeprefix("not ") for term in terms}


def marks_of_file(path: Path) -> set[str]:
    """Return the marks that all tests of a file have, as its source says."""
    if path.suffix != ".py" or not path.name.startswith("test_"):
        return set()
    marks = {"real"} if path.parent.name == "rules" else set[str]()
    if match := _OF_FILE.search(path.read_text(encoding="utf-8")):
        marks.update(_MARK.findall(match[1]))
        if "WITH_TORCH" in match[1]:
            marks.add("collect")
    return marks


def mark(item: pytest.Function) -> None:
    """Mark a test as real, and as slow, if it is.

    A program that imports torch takes seconds to start, and so does a browser: their
    tests are slow, but for those that are marked as real by hand.
    """
    by_hand = item.get_closest_marker("real") is not None
    names = _names_of(item)
    # Each lints one drawing or more; examples of all rules are quick (test_rules.py).
    of_family = item.path.parent.name == "rules"
    if of_family or names & (_READERS | _PROCESSES | _BROWSERS):
        item.add_marker(pytest.mark.real)
    torch = names & _PROCESSES and item.get_closest_marker("collect")
    if not by_hand and (torch or names & _BROWSERS):
        item.add_marker(pytest.mark.slow)


def _names_of(item: pytest.Function) -> frozenset[str]:
    """Return the names that a test uses, with those of its fixtures."""
    known = (item.function, item.cls)
    if (names := _OF_FUNCTIONS.get(known)) is None:
        names = _OF_FUNCTIONS[known] = _names_with_fixtures(item)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return names | {_A_FILE for parameter in parameters if _is_recording(parameter)}


def _names_with_fixtures(item: pytest.Function) -> frozenset[str]:
    """Return the names that all tests of a function use, whatever their parameters."""
    given = item._fixtureinfo.name2fixturedefs  # noqa: SLF001 - pytest has no other way
    functions = (item.function, *(found[-1].func for found in given.values()))
    return frozenset[str]().union(
        *(_names_in(unwrap(function)) for function in functions)
    )


@cache
def _names_in(function: object) -> frozenset[str]:
    """Return the names that a function uses, with those of the helpers it calls."""
    names = set[str]()
    seen, left = set[object](), [function]
    while left:
        one = left.pop()
        if one in seen or not _is_ours(one):
            continue
        seen.add(one)
        own = set(_names(one.__code__))
        names |= own
        for value in map(one.__globals__.get, own):
            left += _functions(value)
            if _is_recording(value):
                names.add(_A_FILE)
    return frozenset(names)


def _is_ours(one: object) -> TypeGuard[FunctionType]:
    return isinstance(one, FunctionType) and one.__code__.co_filename.startswith(_TESTS)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in some code, and in the code within."""
    yield from code.co_names
    if "fixtures" in code.co_consts:
        yield _A_FILE
    for co_const in code.co_consts:
        if isinstance(co_const, CodeType):
            yield from _names(co_const)


def _functions(value: object) -> Iterable[object]:
    """Return the functions that a name stands for."""
    if isinstance(value, type):
        return [unwrap(var) for var in vars(value).values() if callable(var)]
    return [unwrap(value)] if callable(value) else []


def _is_recording(value: object) -> bool:
    """Say whether something is a file of a recording, or some of them."""
    if isinstance(value, dict):
        value = next(iter(value.values()), None)
    if isinstance(value, list | tuple):
        value = next(iter(value), None)
    return isinstance(value, Path) and f"{value}{os.sep}".startswith(_RECORDINGS)
