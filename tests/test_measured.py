"""Measurements of rules' advice: rules/measured.toml, and their table on the page."""

from __future__ import annotations

import datetime as dt
from functools import cache
from typing import TYPE_CHECKING

import pytest
from captures import read_captures, read_pairs
from command import traceq
from conftest import ROOT
from linting import bundled_rules

from traceq.common.locations import MEASURED
from traceq.errors import PackError
from traceq.linter.measured import NOT_TRIED, Measurement, measurements, read
from traceq.report import rule_index
from traceq.report.rule_pages import page

if TYPE_CHECKING:
    from pathlib import Path

FILE = ROOT / "rules" / MEASURED
ROWS = read(FILE)
RULES = bundled_rules()
# What these say is about a recording, or is the reason of another rule's finding.
WITHOUT_FIGURES = ("TRC", "LOG")
PACK_RULE = '''
from __future__ import annotations
from dataclasses import dataclass
from traceq.linter import Rule

@dataclass(frozen=True)
class Odd(Rule):
    """A sentence."""

    code = "ODD001"
'''


@cache
def measured_steps() -> dict[str, tuple[float, float]]:
    """Return what steps of sick programs take, and those of their repaired twins."""
    programs = read_captures(ROOT / "fixtures" / "programs").step_ms
    pairs = [
        pair
        for file in sorted((ROOT / "benchmarks").glob("pairs*.json"))
        for pair in read_pairs(file)
    ]
    return {
        name: (programs[name], programs[f"{name}_fixed"])
        for name in programs
        if f"{name}_fixed" in programs
    } | {
        pair.sick: (
            pair.captures.step_ms[pair.sick],
            pair.captures.step_ms[pair.twin],
        )
        for pair in pairs
    }


# The file.


def test_every_row_names_a_rule_that_is_there() -> None:
    assert {row.rule for row in ROWS} <= set(RULES)


def test_rows_are_in_the_order_of_their_rules() -> None:
    codes = [row.rule for row in ROWS]

    assert codes == sorted(codes)


@pytest.mark.parametrize(
    "code", [code for code in RULES if not code.startswith(WITHOUT_FIGURES)]
)
def test_a_rule_states_what_following_its_advice_gave(code: str) -> None:
    rows = [row for row in ROWS if row.rule == code]

    assert rows, (
        f"rules/measured.toml has no row of {code}: add what following its advice gave,"
        f' or {{ rule = "{code}", note = "{NOT_TRIED}" }},'
    )
    notes = [row.note for row in rows if not row.program]
    assert (NOT_TRIED in notes) == (notes == [NOT_TRIED] and len(rows) == 1)


@pytest.mark.parametrize("row", [row for row in ROWS if row.program], ids=str)
def test_a_measurement_has_a_result(row: Measurement) -> None:
    before, after, _ = row.quantities

    assert row.gpu
    assert (before is None) == (after is None)
    assert before is not None or row.saved or row.note
    assert (
        before is None
        or (before if isinstance(before, (int, float)) else before[0]) > 0
    )


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.program in measured_steps() and row.before_ms],
    ids=str,
)
def test_figures_of_a_capture_are_those_of_its_steps(row: Measurement) -> None:
    for stated, was in zip(
        (row.before_ms, row.after_ms), measured_steps()[row.program], strict=True
    ):
        digits = len(str(stated).partition(".")[2])
        assert stated == pytest.approx(was, abs=0.5001 * 10**-digits)


def test_most_captures_with_a_twin_are_measurements() -> None:
    assert len({row.program for row in ROWS} & set(measured_steps())) > 40


@pytest.mark.parametrize("script", sorted({row.script for row in ROWS if row.script}))
def test_a_script_measures_the_rules_that_name_it(script: str) -> None:
    text = (ROOT / script).read_text(encoding="utf-8")

    assert [
        row.rule for row in ROWS if row.script == script and f'"{row.rule}"' not in text
    ] == []


# The page.


def test_the_page_has_the_measurements_after_the_docstring() -> None:
    text = page(RULES["ATT002"])

    assert (
        "\n\n## Measured\n\n"
        "GPU: H200. Times are of a step where the row does not say of what.\n\n"
        "| program | change | before | after | note |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| attn_fp32 | bfloat16 for the whole model | 67.0 ms | 9.3 ms"
        " | its matmuls got faster too |\n\n"
        "The other causes were not tried.\n\n## A finding\n"
    ) in text


def test_the_page_says_that_the_advice_was_not_tried() -> None:
    assert f"\n\n## Measured\n\n{NOT_TRIED}\n\n" in page(RULES["GEM003"])


def test_the_page_of_a_rule_without_rows_has_no_such_section() -> None:
    assert "## Measured" not in page(RULES["TRC001"])


def test_memory_and_ranges_are_shown_with_their_units() -> None:
    assert "| 4,716 MiB | 674 MiB | at the peak |" in page(RULES["MEM007"])
    assert "| 3.98 GiB | 3.23 GiB | at the peak |" in page(RULES["MEM006"])
    assert "| 0.92 to 0.99 ms | 0.78 ms |" in page(RULES["SRV003"])


def test_lint_does_not_read_the_measurements(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(PACK_RULE, encoding="utf-8")
    (tmp_path / MEASURED).write_text("not TOML", encoding="utf-8")
    trace = ROOT / "fixtures" / "copies" / "trace.json.gz"

    linted = traceq("lint", trace, "--rules", tmp_path, "--select", "CPY002")
    shown = traceq("rule", "ODD001", "--rules", tmp_path)

    assert "is not TOML" not in linted.err
    assert shown.status == 2
    assert f"{MEASURED} is not TOML" in shown.err


# Packs.


def test_a_pack_has_measurements_of_its_own_by_date_and_program(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(PACK_RULE, encoding="utf-8")
    rows = [
        f'{{ rule = "ODD001", program = "{program}", before_ms = 2, after_ms = 1,'
        f" date = 2026-{month}-01 }}"
        for program, month in (("b", "02"), ("c", "01"), ("a | b", "02"))
    ]
    rows.append('{ rule = "ODD002", program = "d", before_ms = 2, after_ms = 1 }')
    (tmp_path / MEASURED).write_text(f"rows = [{','.join(rows)}]", encoding="utf-8")

    text = traceq("rule", "ODD001", "--rules", tmp_path).out

    assert (
        "| program | before | after | date |\n"
        "| --- | --- | --- | --- |\n"
        "| c | 2 ms | 1 ms | 2026-01-01 |\n"
        "| a \\| b | 2 ms | 1 ms | 2026-02-01 |\n"
        "| b | 2 ms | 1 ms | 2026-02-01 |\n"
    ) in text


def test_a_page_is_made_again_when_the_measurements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rule_index, "_UNSETTLED_NS", -(10**18))
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "odd.py").write_text(PACK_RULE, encoding="utf-8")
    file = pack / MEASURED
    row = '{{ rule = "ODD001", note = "{}" }},'

    file.write_text(f"rows = [{row.format('One.')}]", encoding="utf-8")
    first = rule_index.whole([pack])["ODD001"].page
    file.write_text(f"rows = [{row.format('Another.')}]", encoding="utf-8")
    second = rule_index.whole([pack])["ODD001"].page

    assert "One." in first
    assert "Another." in second


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1", "row 1 is not a table"),
        ("{ program = 'a' }", "row 1 names no rule: add rule = CODE"),
        ("{ rule = 'A' }", "row 1 has neither a program nor a note"),
        ("{ rule = 'A', note = 1 }", "row 1 has note = 1: it must be text"),
        ("{ rule = 'A', speed = 1 }", "row 1 has the unknown field speed"),
        ("{ rule = 'A', before_ms = -1 }", "it must be a number that is not negative"),
        ("{ rule = 'A', before_ms = [2, 1] }", "or [from, to]"),
        ("{ rule = 'A', before_ms = 'fast' }", "row 1 has before_ms = 'fast'"),
        ("{ rule = 'A', before_ms = nan }", "row 1 has before_ms = nan"),
        ("{ rule = 'A', before_ms = true }", "row 1 has before_ms = True"),
        ("{ rule = 'A', predicted = 'a lot' }", "it must be as 'saves 26%'"),
        ("{ rule = 'A', saved = '27' }", "it must be as '27%'"),
        ("{ rule = 'A', date = '2026-01-01' }", "it must be a date"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused(
    row: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / MEASURED
    file.write_text(f"rows = [{row}]", encoding="utf-8")

    with pytest.raises(PackError) as refused:
        read(file)

    assert words in str(refused.value)
    assert str(refused.value).startswith(f"{file}: ")


def test_rows_that_are_no_list_are_refused(tmp_path: Path) -> None:
    file = tmp_path / MEASURED
    file.write_text("rows = 1", encoding="utf-8")

    with pytest.raises(PackError, match="rows must be a list of tables"):
        read(file)


def test_a_row_has_all_fields(tmp_path: Path) -> None:
    file = tmp_path / MEASURED
    file.write_text(
        'rows = [{ rule = "A", program = "p", before_ms = [1, 2], date = 2026-01-02 }]',
        encoding="utf-8",
    )

    (row,) = read(file)

    assert row == Measurement("A", "p", before_ms=(1, 2), date=dt.date(2026, 1, 2))
    assert measurements(RULES["SYN002"])[0].script == "benchmarks/models/advice.py"
