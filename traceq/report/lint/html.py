"""Findings as one page of HTML: the same parts as `traceq report` has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.page.build import lint_page

if TYPE_CHECKING:
    from traceq.model.lint_report import Report


def render(report: Report) -> str:
    """Return the page."""
    return lint_page(report)
