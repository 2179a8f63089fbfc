"""Causes planted in compiled programs and in a CUDA graph are found with their line.

The recordings are single steps of an H200 (torch 2.11) of one small transformer, with
what traceq collect kept of its compiled code or of its capture.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from linting import (
    findings_of,
)

import traceq
from traceq.model.recording import Recording

DATA = Path(__file__).parents[1] / "data"
FAMILIES = ("ATT", "NRM", "GEM", "CPY", "LAY", "JIT", "TRC007")


def found(name: str, *codes: str) -> dict[str, tuple[str | None, int | None, str]]:
    """Return where findings are and what they say, by code."""
    trace = traceq.load(DATA / name, cache=False)
    findings = findings_of(Recording(name, trace), *codes)
    return {
        finding.code: (finding.place.file, finding.place.line, finding.message)
        for finding in findings
    }


@pytest.mark.parametrize(
    ("program", "code", "line", "says"),
    [
        ("masked", "ATT005", 32, "the lower triangle [512,512] as a tensor 6 times"),
        ("fp32", "GEM001", 46, "18 float32 matmuls a step run without TF32"),
        # Inductor pads it, so the matmuls are fast: the padding is what it costs.
        ("vocabulary", "GEM004", 76, "copies 3 tensors a step to pad 32003 to 32008"),
        ("break", "JIT003", 60, "splits compiled code 6 times a step"),
    ],
)
def test_a_planted_cause_is_found_inside_compiled_code(
    program: str, code: str, line: int, says: str
) -> None:
    places = found(f"compiled/{program}", "ATT", "GEM", "NRM", "JIT")

    assert list(places) == [code]
    file, at, message = places[code]
    assert (file, at) == ("compiled.py", line)
    assert says in message


def test_a_norm_kept_apart_by_a_graph_break_is_named_with_the_reason() -> None:
    trace = traceq.load(DATA / "compiled" / "break", cache=False)
    (finding,) = findings_of(Recording("break", trace), "JIT003")

    lines = {evidence.label: evidence.name for evidence in finding.evidence}
    assert lines["reason"] == "Call to `torch._dynamo.graph_break()`"
    assert lines["unfused"] == (
        "triton_poi_fused__unsafe_view_add_1 and"
        " triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_0"
    )
    assert finding.advice == "remove the call of torch._dynamo.graph_break()"


def test_planted_causes_are_found_inside_a_replayed_graph() -> None:
    places = found("graphs/masked", "ATT", "NRM")

    assert {code: file for code, (file, _, _) in places.items()} == {
        "ATT005": "compiled.py",
        "NRM002": "compiled.py",
    }
    assert "4 times a step" in places["ATT005"][2]


@pytest.mark.parametrize("program", ["transformer", "conv"])
def test_a_compiled_program_has_no_finding_that_its_eager_twin_has_not(
    program: str,
) -> None:
    eager = {"transformer": {"NRM002", "CPY001"}, "conv": {"LAY001", "CPY001"}}

    assert set(found(f"compiled/{program}", *FAMILIES)) <= eager[program]
