"""Findings of examples, rewritten in the sources of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rule_sources import write_finds

from traceq.linter import Bad
from traceq.linter.pack import load_pack

if TYPE_CHECKING:
    from pathlib import Path

LONG = " ".join(["a sentence that is far too long for a line of its own"] * 3)
RULE = '''"""A rule."""

from traceq.linter import Bad, Good, Rule, dataclass


@dataclass(frozen=True)
class Odd(Rule):
    """A sentence."""

    code = "ODD001"
    examples = (
        Bad(
            """
            host [ProfilerStep#1 ]
            """,
            finds=%s,
        ),
        Good("host [ProfilerStep#1 ]"),
    )
'''
SPLIT = """(
                "it is"
                " odd"
            )"""
SEVERAL = """(
                "it is odd",
                "and even",
            )"""


def bad(folder: Path) -> tuple[type, Bad]:
    (rule,) = load_pack(folder, "odd_pack")
    example = rule.examples[0]
    assert isinstance(example, Bad)
    return rule, example


@pytest.mark.parametrize("before", ['"it is odd"', SPLIT, SEVERAL])
@pytest.mark.parametrize(
    "sentences",
    [
        ("it is strange",),
        ('it says "odd"',),
        ('it\'s \\\\ "odd"',),
        (LONG,),
        ("one", LONG, "three"),
    ],
)
def test_the_sentences_are_those_that_were_written(
    before: str, sentences: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "odd.py"
    file.write_text(RULE % before, encoding="utf-8")

    write_finds(*bad(tmp_path), sentences)

    assert bad(tmp_path)[1].sentences == sentences
    text = file.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 88
    assert text.partition("finds=")[0] == (RULE % before).partition("finds=")[0]


def test_a_short_sentence_is_on_the_line(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(RULE % SPLIT, encoding="utf-8")

    write_finds(*bad(tmp_path), ["it is µ"])

    assert file.read_text(encoding="utf-8") == RULE % '"it is µ"'


def test_what_is_no_literal_is_left_to_the_author(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(RULE % '"it is" + " odd"', encoding="utf-8")

    with pytest.raises(AssertionError, match="edit it yourself"):
        write_finds(*bad(tmp_path), ["it is strange"])
