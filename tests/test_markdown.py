"""Names of a stranger in a comment call nobody, and link to nothing."""

from __future__ import annotations

import re

import pytest

from traceq.report.base.markdown import escaped

CODE = re.compile(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)")


@pytest.mark.parametrize(
    "name",
    [
        "@ann",
        "(@ann-b)",
        "cc:@org/team,",
        "ann@example.org",
        "https://example.org/x",
        "HTTP://EXAMPLE.ORG",
        "www.example.org",
        "mailto:ann@example.org",
        "#17",
        "org/project#17",
        "GH-17",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
        "a`@ann",
        "`@ann`",
        "``@ann",
    ],
)
def test_a_name_that_a_code_host_would_link_is_code(name: str) -> None:
    text = escaped(f"forward of {name} in train_a.py")

    assert CODE.sub("", text) == "forward of  in train\\_a.py"
    (span,) = CODE.finditer(text)
    inside = span[0].strip("`").strip() if "`" not in name else span[0]
    assert name in inside


def test_a_bar_is_never_in_a_code_span() -> None:
    assert escaped("x\\|@ann\\|y") == "x\\\\\\|`@ann\\`\\|y"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x @ w.t() in a.py:3", "x @ w.t() in a.py:3"),
        ("1073741824 bytes, 3 steps", "1073741824 bytes, 3 steps"),
        ("a_b <c> | d", "a\\_b &lt;c&gt; \\| d"),
        ("feedback of decade", "feedback of decade"),
    ],
)
def test_other_words_are_text(text: str, shown: str) -> None:
    assert escaped(text) == shown
