"""The words of the trade: what CONTRIBUTING says we do not use is used nowhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FOLDERS = ("traceq", "rules", "collect", "docs", "benchmarks", "fixtures")
KINDS = (".py", ".md", ".toml", ".yml")
# The table itself, and traces of other people's words.
_TABLE = "### Words we do not use"
# Docstrings of modules begin with the field's noun, not with a question.
MODULES = ("traceq", "collect", "rules", "benchmarks", "tests")
FIRST_WORD = re.compile(r'(?:#.*\n)*r?"""\W*(\w+)')
QUESTIONS = ["What", "Who", "Which", "How", "When", "Where", "Whether", "Why", "Whose"]


def unwanted() -> dict[str, str]:
    """Return what we do not say, by what to say instead, from CONTRIBUTING."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition(_TABLE)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!not |---)(.+?) \| (.+?) \|$", table, re.MULTILINE)
    return {phrase: say for words, say in rows for phrase in words.split(", ")}


def texts() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in KINDS and "__pycache__" not in path.parts:
                yield path


def places_of(text: str, phrases: Iterable[str]) -> list[tuple[int, str]]:
    """Return the lines at which phrases stand, over line ends too."""
    words = (r"[\s\"'#]+".join(map(re.escape, phrase.split())) for phrase in phrases)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])", re.IGNORECASE)
    return [
        (text.count("\n", 0, hit.start()) + 1, hit[0]) for hit in pattern.finditer(text)
    ]


def test_the_table_has_its_rows() -> None:
    table = unwanted()

    assert len(table) > 20
    assert table["anew"] == "again"


def test_a_phrase_is_found_over_the_end_of_a_line() -> None:
    phrases = ["anew", "matrix products"]

    assert places_of("a\nMatrix\n    # products", phrases)[0][0] == 2
    assert places_of("the matrix productions", phrases) == []


def test_words_that_we_do_not_use_stand_nowhere() -> None:
    phrases = unwanted()
    places = []
    for path in sorted(set(texts())):
        text = path.read_text(encoding="utf-8")
        if path.name == "CONTRIBUTING.md":
            text = text.partition(_TABLE)[0]
        name = path.relative_to(ROOT)
        places += [
            f"{name}:{line}: {words}" for line, words in places_of(text, phrases)
        ]

    assert places == [], f"say instead: {phrases}"


def first_words() -> Iterator[tuple[str, str]]:
    """Yield each module with the first word of its docstring, if it has one."""
    for folder in MODULES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if word := FIRST_WORD.match(path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), word[1]


@pytest.mark.real
def test_no_module_begins_with_a_question() -> None:
    modules = dict(first_words())

    assert len(modules) > 500
    assert [name for name, word in modules.items() if word in QUESTIONS] == []
