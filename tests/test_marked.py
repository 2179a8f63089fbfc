"""Spans of findings in a trace: their kernels, idle gaps and host time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import linted
from recordings import ROOT, loaded

from traceq.linter.finding_spans import marked
from traceq.linter.view import View
from traceq.model.finding import Finding, Fix, Severity
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from typing import Any

_US = 1000
_DRAWN = """
    host    [ProfilerStep#1                                                     ]
    host     [aten::mm            ] [aten::item             ] [aten::add          ]
    host      [cudaLaunchKernel>1]   [cudaStreamSynchronize]   [cudaLaunchKernel>2]
    gpu 7            [gemm<1                          ]                  [add<2   ]
"""


def _finding(**parts: Any) -> Finding:  # noqa: ANN401 - what Finding takes
    known: dict[str, Any] = {
        "code": "SYN001",
        "name": "implicit-device-sync",
        "severity": Severity.warning,
        "message": "it waits",
        "advice": "do not",
        "place": None,
        "subject": "aten::item",
        "count": 1,
    }
    return Finding(**known | parts)


def _marks(finding: Finding) -> list[tuple[str, int, int]]:
    table = marked(View(load_drawn(_DRAWN)), [finding])
    return [
        (what, start // _US, end // _US)
        for what, start, end in table.select("what", "start", "end").iter_rows()
    ]


def _at(name: str) -> tuple[int, int]:
    """Return from where to where a name is drawn, in microseconds."""
    line = next(line for line in _DRAWN.splitlines() if f"[{name}" in line)
    origin = len("    host    ")
    return line.index(f"[{name}") - origin, line.index("]", line.index(name)) + 1 - 12


def test_kernels_that_a_finding_was_seen_by_are_marked() -> None:
    assert _marks(_finding(kernels=frozenset({0}))) == [("kernel", *_at("gemm"))]


def test_kernels_of_its_ops_stand_in_for_kernels() -> None:
    """The op and the kernel that a call inside of it launched."""
    assert _marks(_finding(ops=frozenset({0}))) == [
        ("kernel", *_at("gemm")),
        ("op", *_at("aten::mm")),
    ]


def test_the_gap_after_a_sync_is_marked() -> None:
    fix = Fix(syncs=[1])
    result = _marks(_finding(fixes=(fix,), calls=frozenset({1}), gpu_idle_ns=1))
    assert ("gap", _at("gemm")[1], _at("add<2")[0]) in result


def test_a_gap_in_which_the_host_did_something_else_is_not_marked() -> None:
    fix = Fix(ops=[0])
    result = _marks(_finding(fixes=(fix,), ops=frozenset({0}), gpu_idle_ns=1))
    assert [row for row in result if row[0] == "gap"] == [("gap", 0, _at("gemm")[0])]


def test_what_is_nowhere_has_the_steps() -> None:
    assert [what for what, _, _ in _marks(_finding())] == ["step"]


@pytest.mark.parametrize("name", ["copies", "python_in_step", "recompile"])
def test_gaps_of_a_finding_are_about_as_long_as_it_says(name: str) -> None:
    """A gap is marked whole, so they are longer, but not by more than it idles."""
    path = ROOT / "fixtures" / name / "trace.json.gz"
    findings = linted(path).findings
    view = View(loaded(path))
    table = marked(view, findings).with_columns(
        length=(pl.col("end") - pl.col("start")) / view.steps
    )
    assert set(table["finding"]) == set(range(len(findings)))
    assert (table["length"] >= 0).all()
    for number, finding in enumerate(findings):
        rows = table.filter(pl.col("finding") == number, pl.col("what") == "gap")
        if finding.gpu_idle_ns:
            assert rows["length"].sum() >= 0.9 * finding.gpu_idle_ns, finding.code
        else:
            assert rows.is_empty(), finding.code
