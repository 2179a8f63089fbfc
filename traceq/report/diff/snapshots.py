"""A comparison of two memory snapshots that have no traces, in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json
from traceq.report.base.markdown import escaped
from traceq.report.diff import content as words
from traceq.report.diff import memory as memory_diff_content
from traceq.report.diff.json import VERSION, change_data
from traceq.report.lint.github import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.differ.compare import MemoryChange
    from traceq.differ.limits import Broken


def full(
    change: MemoryChange, broken: Sequence[Broken], *, width: int | None, color: bool
) -> str:
    """Return the comparison for a terminal."""
    lines = words.failures(broken)
    text = memory_diff_content.text(change.memory, width=width, color=color)
    lines += [text.rstrip(), "", *_findings(change)]
    return "\n".join(lines) + "\n"


def concise(change: MemoryChange, broken: Sequence[Broken]) -> str:
    """Return one line a fact."""
    headline = memory_diff_content.headline(change.memory)
    return "\n".join([*words.failures(broken), headline, *_findings(change)]) + "\n"


def markdown(change: MemoryChange, broken: Sequence[Broken]) -> str:
    """Return a section for a pull request."""
    lines = [f"**{escaped(text)}**\n" for text in words.failures(broken)]
    lines += [memory_diff_content.markdown(change.memory)]
    lines += [escaped(line) + "\n" for line in _findings(change)]
    return "\n".join(lines)


def github(change: MemoryChange, broken: Sequence[Broken]) -> str:
    """Return commands that become annotations."""
    title = {"title": "traceq diff"}
    lines = [command("error", title, text) for text in words.failures(broken)]
    headline = memory_diff_content.headline(change.memory)
    lines.append(command("notice", title, headline))
    lines += [command("notice", title, line) for line in _findings(change)]
    return "\n".join(lines) + "\n"


def json(change: MemoryChange, broken: Sequence[Broken]) -> str:
    """Return one object; ``version`` says which fields there are."""
    content = {
        "version": VERSION,
        "traceq": __version__,
        "failed": [
            {"limit": one.limit.text, "reason": text}
            for one, text in zip(broken, words.failures(broken), strict=True)
        ],
        "headline": memory_diff_content.headline(change.memory),
        "before": {"name": as_unicode(change.names[0])},
        "after": {"name": as_unicode(change.names[1])},
        "memory": memory_diff_content.data(change.memory),
        "findings": [
            change_data(finding_change) for finding_change in change.findings.changes
        ],
        "findings_as_before": change.findings.same,
    }
    return plain_json(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _findings(change: MemoryChange) -> list[str]:
    return [
        f"findings: {words.findings_verdict(change.findings)}",
        *(
            f"{finding_change.state}: {words.finding_line(finding_change)}"
            for finding_change in change.findings.changes
        ),
    ]
