"""Findings with compiled code and without, which are equal to the last digit."""

from __future__ import annotations

import pytest
from command import traceq
from recordings import FIXTURE_TRACES

from traceq import native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not native.available(), reason="compiled code is not built"),
]
# Host-bound ones, whose figures come from long sums.
CASES = [
    "python_in_step",
    "twins/adam_fused",
    "twins/optimizer_fused",
    "twins/moe_loop",
]


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
