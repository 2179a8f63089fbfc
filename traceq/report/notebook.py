"""Results and findings in a notebook: a little HTML, in which names stay text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.report.base.text import where
from traceq.report.lint.content import code_lines, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.model.finding import Finding
    from traceq.report.base.content import Content

# Colours and fonts are the notebook's own, light or dark.
_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_RESULT = _TEMPLATE.from_string("""\
<div class="traceq">
{% for note in notes %}
<p><em>{{ note }}</em></p>
{% endfor %}
{% if not contents %}
<pre>{{ text }}</pre>
{% endif %}
{% for content in contents %}
<p><strong>{{ content.title }}</strong></p>
{% if content.facts or content.warnings %}
<table>
{% for warning in content.warnings %}
<tr><th style="text-align:left">Incomplete</th>\
<td style="text-align:left">{{ warning }}</td></tr>
{% endfor %}
{% for label, text in content.facts %}
<tr><th style="text-align:left">{{ label }}</th>\
<td style="text-align:left">{{ text }}</td></tr>
{% endfor %}
</table>
{% endif %}
{% for table in content.tables %}
<table>
<tr>
{% for column in table.columns %}
<th style="text-align:{{ 'right' if column.number else 'left' }}">\
{{ column.title }}</th>
{% endfor %}
</tr>
{% for row in table.rows %}
<tr>
{% for column, cell in zip(table.columns, row) %}
<td style="text-align:{{ 'right' if column.number else 'left' }}">{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</table>
{% endfor %}
{% endfor %}
</div>
""")
_FINDING = _TEMPLATE.from_string("""\
<div class="traceq">
<p><strong>{{ title }}</strong></p>
<p>{{ message }}</p>
<table>
{% for label, text in facts %}
<tr><th style="text-align:left">{{ label }}</th>\
<td style="text-align:left">{{ text }}</td></tr>
{% endfor %}
</table>
{% if code %}
<pre>{{ code }}</pre>
{% endif %}
</div>
""")


def render(contents: Sequence[Content], text: str, notes: Sequence[str] = ()) -> str:
    """Return results one below the other, after what is to be known of them.

    Where there is nothing but a text, it is shown as it is.
    """
    return _RESULT.render(contents=contents, text=text, notes=notes, zip=zip)


def render_finding(finding: Finding) -> str:
    """Return one finding: what it costs, where it is, its evidence and its fix."""
    return _FINDING.render(
        title=printable(f"{finding.code} {finding.name} ({finding.severity.value})"),
        message=printable(finding.message),
        facts=[(label, printable(text)) for label, text in _facts(finding) if text],
        code="\n".join(code_lines(finding.frame)) if finding.frame else "",
    )


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    yield "saves", _saving(finding)
    yield "where", where(finding.place)
    for entry in finding.evidence:
        yield entry.label, evidence(entry)
    yield "fix", finding.advice


def _saving(finding: Finding) -> str:
    """Return what a fix saves, and its range where that is another text."""
    if finding.cost_bytes:
        return units.size(finding.cost_bytes)
    if not finding.saves_ns:
        return ""
    low, likely, high = (
        units.time(ns)
        for ns in (finding.saves_low_ns, finding.saves_ns, finding.saves_high_ns)
    )
    return likely if low == high else f"{likely}, {low} to {high}"
