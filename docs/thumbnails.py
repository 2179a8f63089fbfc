"""Thumbnails of the gallery: where a step goes, and the three largest savings, as SVG.

Drawn when the pages are built, of the same findings as the reports they link to.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport

_WIDTH, _HEIGHT, _MARGIN = 300, 118, 8
_LINE = 17
_BAR = 14
_SHOWN = 3
_BUSY, _IDLE, _SAVING = "#3f51b5", "#c5cae9", "#e0722d"
_MS = 1e6


def thumbnail(outcome: RecordingReport) -> str:
    """Return the picture of one recording: its bound, its step, its findings."""
    bound = outcome.bound
    lines: list[str] = []
    if bound is not None and bound.step_ns:
        busy = round((_WIDTH - 2 * _MARGIN) * bound.gpu_busy)
        word = "GPU-bound" if bound.by == "gpu" else "host-bound"
        lines += [
            _text(0, f"{bound.step_ns / _MS:.3g} ms a step, {word}", bold=True),
            _box(1, _WIDTH - 2 * _MARGIN, _IDLE),
            _box(1, busy, _BUSY),
        ]
    lines += _findings(outcome.findings, bound.step_ns if bound else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="12"'
        ' font-family="system-ui, sans-serif">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#f5f6fa"/>'
        f"{''.join(lines)}</svg>"
    )


def _findings(findings: Sequence[Finding], step_ns: int) -> list[str]:
    """Return a bar for each of the largest savings, in proportion to the step."""
    most = sorted(findings, key=lambda one: one.saves_ns or 0, reverse=True)[:_SHOWN]
    lines = []
    for row, one in enumerate(most, 3):
        saves = one.saves_ns or 0
        room = _WIDTH - 2 * _MARGIN
        if step_ns and saves:
            lines.append(_box(row, max(2, round(room * saves / step_ns)), _SAVING))
        text = f"{one.code} {one.name}"
        lines.append(_text(row, f"{text}  -{saves / _MS:.3g} ms" if saves else text))
    return lines


def _text(row: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    y = _MARGIN + row * _LINE + 11
    place = f'x="{_MARGIN + 3}" y="{y}" fill="#1a1c2c"{weight}'
    return f"<text {place}>{escape(text)}</text>"


def _box(row: int, width: int, color: str) -> str:
    y = _MARGIN + row * _LINE
    opacity = ' fill-opacity="0.35"' if color == _SAVING else ""
    return (
        f'<rect x="{_MARGIN}" y="{y}" width="{width}" height="{_BAR}"'
        f' fill="{color}"{opacity}/>'
    )
