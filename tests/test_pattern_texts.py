"""The texts that a pattern stands for match what the pattern matches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceq.analysis.base.pattern_texts import Lines, texts_of

LETTERS = "ab_:1"
PIECES = st.one_of(
    st.text(LETTERS, min_size=1, max_size=3),
    st.sampled_from(
        (r"\.", r"\(", r"\w+", r"\d*", ".", "[ab]", r"\b", "a?", "a*", "b{2}", "1+")
    ),
)
FLAT = st.lists(PIECES, min_size=1, max_size=3).map("".join)
GROUPS = st.builds(
    "({}){}".format,
    st.lists(FLAT, min_size=1, max_size=3).map("|".join),
    st.sampled_from(("", "?", "*", "+")),
)
NESTED = st.builds(
    "({}{}|{})?".format,
    st.text(LETTERS, max_size=2),
    GROUPS,
    st.text(LETTERS, max_size=2),
)
BRANCHES = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("", "^")),
    st.one_of(st.text(LETTERS, min_size=1, max_size=2), PIECES),
    st.lists(st.one_of(FLAT, GROUPS, NESTED), max_size=2).map("".join),
    st.sampled_from(("", "$")),
)
PATTERNS = st.lists(BRANCHES, min_size=1, max_size=3).map("|".join)
NAMES = st.lists(st.text(LETTERS + "A.( ", max_size=7), min_size=1, max_size=20)


@pytest.mark.real
@settings(max_examples=200, deadline=None)
@given(PATTERNS, NAMES)
def test_texts_match_what_the_pattern_matches(pattern: str, names: list[str]) -> None:
    texts = texts_of(pattern)
    if texts is None:
        return
    matched = [name for name in names if re.search(pattern, name, re.ASCII)]
    result = [names[line] for line in texts.among(Lines.of(names))]

    if texts.exact:
        assert result == matched
    else:
        assert {*matched} <= {*result}


def test_a_pattern_without_a_text_to_begin_with_has_none() -> None:
    assert texts_of(r"\w+_v") is None


def test_a_break_in_a_name_ends_no_name() -> None:
    texts = texts_of("^b$|^a")
    assert texts is not None
    assert texts.among(Lines.of(["a\nb", "b", "c"])) == [0, 1]
