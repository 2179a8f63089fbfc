"""A result in a notebook: a little HTML, in which names stay text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def render(contents: Sequence[Content], text: str, notes: Sequence[str] = ()) -> str:
    """Return results one below the other, after what is to be known of them.

    Where there is nothing but a text, it is shown as it is.
    """
    return _RESULT.render(contents=contents, text=text, notes=notes, zip=zip)
