"""A process killed at any moment leaves nothing that changes later results."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from conftest import FIXTURES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="SIGKILL"),
]
MOMENTS = 4
TRACE = str(FIXTURES[0])


def start(cache: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "traceq", *arguments],
        env=os.environ | {"TRACEQ_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(cache: Path, *arguments: str) -> tuple[int, bytes, bytes]:
    child = start(cache, *arguments)
    out, err = child.communicate()
    return child.returncode, out, err


def kill(moment: float, cache: Path, *arguments: str) -> None:
    child = start(cache, *arguments)
    time.sleep(moment)
    child.kill()
    child.communicate()


def moments(longest: float) -> list[float]:
    """Return moments of a run, more of them late: it begins with imports."""
    chance = random.Random(0)  # noqa: S311 - not a secret
    return [longest * chance.uniform(0.4, 1.0) for _ in range(MOMENTS)]


@pytest.mark.parametrize("command", ["summary", "lint"])
def test_a_reader_killed_at_any_moment_leaves_the_same_results(
    command: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    expected = finish(tmp_path / "whole", command, TRACE)
    longest = time.monotonic() - began

    for moment in moments(longest):
        kill(moment, tmp_path / "killed", command, TRACE)

    assert finish(tmp_path / "killed", command, TRACE) == expected
    assert finish(tmp_path / "killed", command, TRACE) == expected


def test_a_shrink_killed_at_any_moment_leaves_a_whole_fixture_or_none(
    tmp_path: Path,
) -> None:
    began = time.monotonic()
    finish(tmp_path / "cache", "shrink", TRACE, "-o", str(tmp_path / "whole"))
    longest = time.monotonic() - began
    expected = {file.name for file in (tmp_path / "whole").iterdir()}

    for number, moment in enumerate(moments(longest)):
        target = tmp_path / f"killed-{number}"
        kill(moment, tmp_path / "cache", "shrink", TRACE, "-o", str(target))
        if target.exists():
            assert {file.name for file in target.iterdir()} == expected
