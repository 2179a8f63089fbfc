"""Findings in a recording of Nsight Systems: its flags, and dtypes as inferred ones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.linter.need import Need
from traceq.model.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceq.linter.rule import Rule
    from traceq.model.facts import Facts
    from traceq.model.finding import Finding

INFERRED = Evidence("dtypes", "inferred from kernel names")
"""Evidence of findings that rest on dtypes, which Nsight Systems does not record."""
_DTYPE = re.compile(
    r"\b(?:b?float(?:16|32|64)|[bt]?fp?(?:8|16|32|64)|float8\w*|casts?|dtypes?)\b",
    re.IGNORECASE,
)
_FLAGS = {
    "profile(record_shapes=True)": "nsys profile --pytorch=autograd-shapes-nvtx",
    "profile(with_stack=True)": "nsys profile --python-backtrace=cuda",
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]": (
        "nsys profile --trace=cuda,nvtx"
    ),
}


def by_recorder(
    findings: Iterable[Finding], rules: Mapping[str, Rule], facts: Facts | None
) -> list[Finding]:
    """Return the findings; in an export, with the flags of nsys and inferred dtypes."""
    if facts is None or not facts.recorder:
        return list(findings)
    marked = [_with_flags(finding) for finding in findings]
    if not facts.dtypes_inferred:
        return marked
    return [
        replace(finding, evidence=(*finding.evidence, INFERRED))
        if _rests_on_dtypes(finding, rules[finding.code])
        else finding
        for finding in marked
    ]


def _with_flags(finding: Finding) -> Finding:
    """Return a finding whose advice names the flags of nsys, not those of PyTorch."""
    advice = finding.advice
    for option, flag in _FLAGS.items():
        advice = advice.replace(option, flag)
    if advice == finding.advice:
        return finding
    # Examples of the page are of PyTorch's profiler.
    return replace(finding, advice=advice, example="")


def _rests_on_dtypes(finding: Finding, rule: Rule) -> bool:
    """Return whether a finding names a dtype, or its figures are of shapes' bytes."""
    if Need.SHAPES in rule.needs:
        return True
    texts = [
        finding.message,
        *(f"{evidence.label} {evidence.name}" for evidence in finding.evidence),
    ]
    return any(map(_DTYPE.search, texts))
