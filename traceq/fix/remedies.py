"""Remedies of rules: what ``traceq try`` switches on, and ``traceq fix`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.model.finding import Finding

EDITS = {
    "ATT001": "is_causal",
    "ATT005": "is_causal",
    "CPY003": "pinned_copy",
    "DAT001": "dataloader",
    "DAT002": "dataloader",
    "GEM001": "tf32",
    "LCH002": "set_to_none",
    "LCH003": "fused_optimizer",
    "LCH004": "fused_optimizer",
    "LOG004": "tf32",
    "NRM002": "rms_norm",
    "SYN001": "validate_args",
    "SYN003": "validate_args",
}
"""Edit of a rule's findings, where it can be made without a decision."""

TRIED = {
    "ATT001": "sdpa_backend",
    "ATT002": "sdpa_backend",
    "CPY003": "pinned_copy",
    "DAT001": "dataloader",
    "DAT002": "dataloader",
    "GEM001": "tf32",
    "HST004": "gc_freeze",
    "KRN005": "cudnn_benchmark",
    "LAY001": "channels_last",
    "LCH001": "compile",
    "LCH002": "compile_reduce_overhead",
    "LCH003": "fused_optimizer",
    "LCH004": "fused_optimizer",
    "LOG004": "tf32",
    "MEM001": "allocator",
    "MEM004": "allocator",
    "MEM005": "allocator",
    "MEM011": "no_checkpointing",
    "NRM002": "compile",
}
"""Remedy of a rule's findings that ``traceq try`` switches on."""
_VALIDATES = "validate_args=False"
# Edits of rules that have other fixes, too: it is no refusal if they do not apply.
_SOMETIMES = {"LCH002", "SYN001", "SYN003"}


def remedy_of(finding: Finding) -> str | None:
    """Return the name of the remedy that ``traceq try`` has for a finding, if any."""
    if finding.code in {"SYN001", "SYN003"}:
        return "validate_args" if _VALIDATES in finding.advice else None
    return TRIED.get(finding.code)


def edit_of(finding: Finding) -> str:
    """Return the name of the edit of a finding; empty if its rule has none."""
    name = EDITS.get(finding.code, "")
    if name == "validate_args" and _VALIDATES not in finding.advice:
        return ""
    return name


def always_applies(finding: Finding) -> bool:
    """Return whether the rule's fix is that edit, and not one of several."""
    return finding.code not in _SOMETIMES or _VALIDATES in finding.advice
