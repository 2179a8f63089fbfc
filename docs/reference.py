"""Reference pages of columns and JSON fields, generated from the schemas.

python docs/reference.py        writes docs/columns.md and docs/json.md; so does
                                `make goldens`, and a test holds both pages to it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.model.facts import FACTS
from traceq.model.schema import ANALYSES, TABLES
from traceq.report import query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.schema import Column

DOCS = Path(__file__).parent
SCHEMAS = DOCS / "schemas"
# In the order in which one meets them; others follow by name.
FIRST = ("lint", "check", "diff", "summary", "regions", "roofline")
_COLUMNS = """\
# Columns

The tables of a trace, as `traceq query`, `traceq.load(path)` and rules see them, and as
`traceq schema` prints them. `UInt32 → ops.id` is a row of the table `ops`. This page is
generated from `traceq/model/schema.py`.
"""
_JSON = """\
# JSON fields

What the commands write with `--format json`, field by field. `a[].b` is the field `b`
of each object in the list `a`; `a.*` is each value of the object `a`, whose keys are
names. Times that end in `_ns` are nanoseconds, sizes that end in `_bytes` bytes. Fields
may be added at any time; `version` is raised when one is renamed or removed. This page
is generated from the [JSON schemas](schemas/README.md), which also say which fields are
always there.
"""


def pages() -> dict[Path, str]:
    """Return the text of each page, by its file."""
    return {DOCS / "columns.md": columns_page(), DOCS / "json.md": json_page()}


def columns_page() -> str:
    """Return the page on the columns of all tables."""
    parts = [_COLUMNS]
    for name, table in (TABLES | ANALYSES).items():
        rows = [
            (f"`{column}`", _dtype(one), one.meaning.replace("|", r"\|"))
            for column, one in table.columns.items()
        ]
        parts += [f"## {name}\n", f"{table.meaning}\n", _table("column", rows)]
    facts = [(f"`{name}`", *about) for name, about in FACTS.items()]
    parts += ["## facts\n", "Facts on the trace as a whole: `trace.facts`.\n"]
    return "\n".join([*parts, _table("field", facts)])


def json_page() -> str:
    """Return the page on the fields of all JSON documents."""
    schemas = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(SCHEMAS.glob("*.json"), key=_order)
    }
    shared: dict[str, Any] = {}
    parts = [_JSON]
    for name, schema in schemas.items():
        definitions = schema.get("$defs", {})
        own = {
            part: f"{name} {part}"
            for part, definition in definitions.items()
            if shared.setdefault(part, definition) != definition
        }
        parts += [f"## {name}\n", f"{schema['title']}\n", _object(schema, own)]
        for part, heading in own.items():
            parts += [f"### {heading}\n", _object(definitions[part], own)]
    parts.append("## Objects of several documents\n")
    for part, definition in sorted(shared.items()):
        parts += [f"### {part}\n", _object(definition, {})]
    return "\n".join(parts)


def _object(schema: dict[str, Any], own: dict[str, str]) -> str:
    """Return the table of an object; headings of its ``own`` parts are not shared."""
    rows = list(_fields(schema))
    for part, heading in own.items():
        link = f"[{part}](#{heading.replace(' ', '-')})"
        rows = [
            (path, kind.replace(f"[{part}](#{part})", link), meaning)
            for path, kind, meaning in rows
        ]
    return _table("field", rows)


def _dtype(column: Column) -> str:
    name = query.type_name(column.dtype)
    if column.unit.endswith(".id"):
        return f"{name} → [{column.unit}](#{column.unit.removesuffix('.id')})"
    return f"{name}, {column.unit}" if column.unit else name


def _order(file: Path) -> tuple[int, str]:
    known = file.stem in FIRST
    return (FIRST.index(file.stem) if known else len(FIRST)), file.stem


def _fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, type and meaning of all fields below an object."""
    below = dict(schema.get("properties", {}))
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        below["*"] = more
    for name, part in below.items():
        place = f"{path}.{name}" if path else name
        meaning = part.get("description", "")
        yield f"`{place}`", _type(part), meaning.replace("|", r"\|")
        while "items" in part:
            place, part = f"{place}[]", part["items"]  # noqa: PLW2901 - its elements
        for one in (part, *part.get("anyOf", ())):
            yield from _fields(one, place)


def _type(part: dict[str, Any]) -> str:
    """Return the type of a field in words.

    >>> _type({"type": ["null", "array"], "items": {"type": "string"}})
    'list of string, or null'
    """
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "const" in part:
        return f"`{json.dumps(part['const'])}`"
    if "enum" in part:
        return ", ".join(f"`{json.dumps(one)}`" for one in part["enum"])
    if "anyOf" in part and "type" not in part:
        return " or ".join(_type(one) for one in part["anyOf"])
    types = part.get("type", "any")
    names = [types] if isinstance(types, str) else sorted(types, key="null".__eq__)
    if "array" in names and part.get("items"):
        names[names.index("array")] = f"list of {_type(part['items'])}"
    words = ", or ".join(names)
    return words.replace("array", "list")


def _table(first: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {first} | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages."""
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
