"""Advice to compile: fit for the program, and led by one finding."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.model.finding import LED, Evidence
from traceq.model.torch_versions import version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.linter.rule import Rule
    from traceq.linter.view import View
    from traceq.model.finding import Finding

MODEL = "compile the model"
"""The words in which rules advise it; what the program needs besides is added here."""
_BESIDE = "compile the function too that these ops are in"
_SIZES = "compile the model with dynamic=True, as its sizes vary"
_DENSE = "make sparse gradients dense (sparse=False) and compile the model"
# What makes the gradient of an embedding with ``sparse=True``: compiling it fails.
_SPARSE = ("aten::embedding_sparse_backward", "aten::_embedding_bag_sparse_backward")
_CALL = ".compile("
_EXAMPLE = "model.compile()"
_DYNAMIC = "model.compile(dynamic=True)"
# From this torch on a module compiles itself in place, and its checkpoints keep their
# names; before, what compiles it is another module around it.
_IN_PLACE = (2, 2)
_STATEMENT = re.compile(r"^([+ ] )((?:self\.)?(?:model|net))\.compile\(", re.MULTILINE)
_EXPRESSION = re.compile(r"(?<![\w.])(model|net)\.compile\(")


def fitted(findings: Sequence[Finding], view: View) -> list[Finding]:
    """Return findings with advice to compile that fits the program.

    Beside compiled code it is what is not compiled yet. Where sizes vary it is to
    compile for all of them: otherwise each new size may be compiled again. Sparse
    gradients make compiling fail. Older torch compiles no module in place.
    """
    torch = version(view.trace.facts.torch_to)
    if torch and torch < _IN_PLACE:
        findings = [_around(finding) for finding in findings]
    if not any(MODEL in finding.advice for finding in findings):
        return list(findings)
    if view.compiled:
        words = _BESIDE
    elif view.has_op(_SPARSE):
        words = _DENSE
    elif view.sizes_vary:
        words = _SIZES
    else:
        return list(findings)
    return [
        _fitted(finding, words) if MODEL in finding.advice else finding
        for finding in findings
    ]


def _around(finding: Finding) -> Finding:
    """Return a finding that compiles a module as one around it, not in place."""
    example = _STATEMENT.sub(r"\1\2 = torch.compile(\2, ", finding.example)
    advice = _EXPRESSION.sub(r"torch.compile(\1, ", finding.advice)
    return replace(
        finding,
        example=example.replace(", )", ")"),
        advice=advice.replace(", )", ")"),
    )


def _fitted(finding: Finding, words: str) -> Finding:
    example = finding.example
    if words == _SIZES:
        example = example.replace(_EXAMPLE, _DYNAMIC)
    elif _CALL in example:
        # It shows the model, which is compiled, or cannot be as it is.
        example = ""
    return replace(
        finding, advice=finding.advice.replace(MODEL, words), example=example
    )


def led(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """Return findings of which those that advise to compile name the one that leads.

    One call of ``torch.compile`` is the fix of all of them: the most general leads, of
    several the one that saves most.
    """
    compiling = [finding for finding in findings if _advises(finding)]
    leading = [
        finding
        for finding in compiling
        if not finding.minor and rules[finding.code].residual
    ]
    if len(compiling) < 2 or not leading:  # noqa: PLR2004 - a second points to the first
        return list(findings)
    first = max(
        leading, key=lambda finding: (rules[finding.code].general, finding.saves_ns)
    )
    pointer = Evidence(LED, f"{first.code}: one torch.compile fixes both")
    return [
        replace(finding, evidence=(*finding.evidence, pointer))
        if finding in compiling and finding is not first
        else finding
        for finding in findings
    ]


def _advises(finding: Finding) -> bool:
    return any(words in finding.advice for words in (MODEL, _BESIDE, _CALL))
