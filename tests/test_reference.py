"""Reference pages on columns, JSON fields and options: as generated from the code."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT
from goldens import updating

from traceq.common.import_folder import mount
from traceq.model.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

PAGES = ("columns.md", "json.md", "cli.md")


def generated() -> dict[Path, str]:
    mount(ROOT / "docs", "_docs_of_traceq")
    pages: dict[Path, str] = import_module("_docs_of_traceq.reference").pages()
    commands = import_module("_docs_of_traceq.command_reference")
    return pages | {commands.PAGE: commands.page()}


@pytest.mark.golden
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_is_generated(name: str) -> None:
    file = ROOT / "docs" / name
    text = generated()[file]

    if updating():
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), (
        f"docs/{name} is not what the code says: run make goldens"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_linked(name: str) -> None:
    assert f"- {name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_link_within_a_page_leads_to_a_heading(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.*)$", text, re.MULTILINE)

    linked = set(re.findall(r"\]\(#([^)]+)\)", text))

    assert linked
    assert linked <= {heading.lower().replace(" ", "-") for heading in headings}


def test_every_column_has_its_line() -> None:
    text = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)

    assert len(lines) > sum(len(table.columns) for table in TABLES.values())


def test_every_json_field_has_a_sentence() -> None:
    page = generated()[ROOT / "docs" / "json.md"]
    rows = re.findall(r"^\| (`\S+`) \|.*?\| *([^|]*?) *\|$", page, re.MULTILINE)

    assert rows
    assert [field for field, meaning in rows if not meaning.endswith(".")] == []
