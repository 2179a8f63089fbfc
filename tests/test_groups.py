"""Tests of one recording, or of one file, are of one group."""

from __future__ import annotations

import pytest

pytest.importorskip("xdist")

from groups import group_of


@pytest.mark.parametrize(
    "test",
    [
        "tests/test_a.py::test_one[copies]",
        "tests/test_b.py::TestTwo::test_two[copies]",
        "tests/test_b.py::test_three[80-copies]",
        "tests/test_b.py::test_four[copies-80]",
    ],
)
def test_the_tests_of_a_recording_are_a_group(test: str) -> None:
    assert group_of(test) == "copies"


def test_a_longer_name_is_another_recording() -> None:
    assert group_of("tests/test_a.py::test_one[copies_fixed]") == "copies_fixed"


def test_the_other_tests_of_a_file_are_a_group() -> None:
    tests = ("test_one", "TestTwo::test_two", "test_three[copied from the host]")

    assert {group_of(f"tests/rules/test_a.py::{item}") for item in tests} == {"test_a"}
