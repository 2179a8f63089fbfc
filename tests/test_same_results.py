"""Results that are equal to the last digit: compiled or not, with any threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command import traceq
from recordings import FIXTURE_TRACES

from traceq import native

pytestmark = pytest.mark.slow
# Host-bound ones, whose figures come from long sums.
CASES = [
    "python_in_step",
    "twins/adam_fused",
    "twins/optimizer_fused",
    "twins/moe_loop",
]


@pytest.mark.skipif(not native.available(), reason="compiled code is not built")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("command", ["lint", "summary"])
def test_results_are_the_same_to_the_last_digit(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (command, FIXTURE_TRACES[name], "--format", "json", "--no-cache")
    monkeypatch.delenv("TRACEQ_PURE", raising=False)
    compiled = traceq(*words)
    monkeypatch.setenv("TRACEQ_PURE", "1")

    assert traceq(*words).out == compiled.out


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same_with_one_thread_and_with_eight(name: str) -> None:
    """The tests run with one thread for each worker, and people with all they have."""
    words = ("lint", str(FIXTURE_TRACES[name]), "--format", "json", "--no-cache")
    process, eight = (
        subprocess.run(
            [sys.executable, "-m", "traceq", *words],
            env={**os.environ, "POLARS_MAX_THREADS": threads},
            capture_output=True,
            check=False,
        )
        for threads in ("1", "8")
    )

    assert process.stdout
    assert process.stdout == eight.stdout
