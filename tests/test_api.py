"""The commands as functions: what they return is what the command line prints."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from html.parser import HTMLParser
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
import recordings
from command import traceq as run
from conftest import ROOT

import traceq
from traceq.common import units
from traceq.errors import InputError, TraceqError
from traceq.model.finding import CodeFrame
from traceq.testing.timeline import draw

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.api.result import Result

FIXTURES = ROOT / "fixtures"
TRACE = FIXTURES / "attn_mask_fmha" / "trace.json.gz"
TWIN = FIXTURES / "twins" / "attn_flash" / "trace.json.gz"
SNAPSHOT = FIXTURES / "twins" / "memory_leak" / "snapshot.pickle.gz"

QUESTIONS: dict[str, tuple[Any, list[str]]] = {
    "lint": (lambda: traceq.lint(TRACE), ["lint", str(TRACE)]),
    "diff": (lambda: traceq.diff(TRACE, TWIN), ["diff", str(TRACE), str(TWIN)]),
    "summary": (lambda: traceq.summary(TRACE), ["summary", str(TRACE)]),
    "memory": (lambda: traceq.memory(SNAPSHOT), ["memory", str(SNAPSHOT)]),
    "regions": (
        lambda: traceq.regions(TRACE, by="module"),
        ["regions", str(TRACE), "--by", "module"],
    ),
    "roofline": (lambda: traceq.roofline(TRACE), ["roofline", str(TRACE)]),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, Result]:
    """One answer to each question."""
    return {name: ask() for name, (ask, _) in QUESTIONS.items()}


@pytest.mark.real
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.slow
def test_text_and_json_are_what_the_command_prints(
    name: str, answers: dict[str, Result]
) -> None:
    words = QUESTIONS[name][1]

    text, data = run(*words), run(*words, "--format", "json")

    assert str(answers[name]) + "\n" == text.out
    assert answers[name].to_dict() == json.loads(data.out)


@pytest.mark.parametrize("name", [*QUESTIONS, "job", "profile"])
def test_what_is_exported_is_a_function_with_an_explanation(name: str) -> None:
    function_type = getattr(traceq, name)

    assert isinstance(function_type, FunctionType)
    assert function_type.__doc__
    assert "return" in function_type.__annotations__
    assert name in traceq.__all__


def test_no_module_of_the_package_takes_the_place_of_a_function() -> None:
    modules = {file.stem for file in (ROOT / "traceq").iterdir()}

    assert not modules & {*traceq.__all__}


class _Tags(HTMLParser):
    """Sees that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"class", "style"}
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_notebook_shows_a_short_table(name: str, answers: dict[str, Result]) -> None:
    html = answers[name]._repr_html_()

    tags = _Tags()
    tags.feed(html)
    assert not tags.open
    assert "table" in tags.seen
    assert not tags.seen & {"script", "style", "img", "iframe", "a"}
    assert len(html) < 40_000


def test_names_of_a_trace_stay_text_in_a_notebook(tmp_path: Path) -> None:
    drawing = """
        host   [ProfilerStep#1                            ]
        host    [aten::<script>alert(1)</script>]
        host     [cudaLaunchKernel>1]
        gpu 7                [<img src=x onerror=alert(1)><1     ]
    """
    file = tmp_path / "<b>.json"
    file.write_text(json.dumps(draw(drawing)))

    html = traceq.summary(file)._repr_html_()

    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "<b>" not in html


def test_a_notebook_shows_a_finding_with_its_saving_place_and_fix() -> None:
    finding, *_ = traceq.lint(TRACE).findings

    html = finding._repr_html_()

    tags = _Tags()
    tags.feed(html)
    assert not tags.open
    assert finding.code in html
    assert units.time(finding.saves_ns) in html
    assert str(finding.place.line) in html
    assert ">fix</th>" in html


def test_names_of_a_trace_stay_text_in_a_finding() -> None:
    finding, *_ = traceq.lint(TRACE).findings
    hostile = "<script>alert(1)</script>\u202e"
    place = replace(finding.place, function=hostile)
    frame = CodeFrame(1, (hostile,), 1)

    html = replace(
        finding, place=place, message=hostile, advice=hostile, frame=frame
    )._repr_html_()

    assert html.count("&lt;script&gt;") == 4
    assert "<script" not in html
    assert "\u202e" not in html


def test_findings_are_objects() -> None:
    finding, *_ = traceq.lint(TRACE).findings

    assert finding.code == "ATT001"
    assert finding.place.function == "masked"
    assert finding.saves_ns > 0


def test_what_lint_finds_fails_as_it_is_told() -> None:
    result = traceq.lint(TRACE, fail_on="error")

    assert result.clean
    assert not result.failing
    assert [finding.code for finding in traceq.lint(TRACE).failing] == [
        "ATT001",
        "LCH004",
    ]


def test_rules_are_chosen_by_text_or_by_list() -> None:
    result = traceq.lint(TRACE, select="SYN,LCH001")
    same = traceq.lint(TRACE, select=["SYN", "LCH001"])

    assert result.to_dict() == same.to_dict()
    assert not result.findings


def test_a_baseline_hides_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    run("lint", str(TRACE), "--write-baseline", str(file))

    result = traceq.lint(TRACE, baseline=file)

    assert not result.findings
    assert result.report.outcomes[0].in_baseline == 3


def test_a_baseline_that_is_not_there_is_noted(tmp_path: Path) -> None:
    result = traceq.lint(TRACE, baseline=tmp_path / "none.json")

    assert any("as an empty baseline it hides nothing" in note for note in result.notes)


@pytest.mark.slow
def test_a_limit_that_is_broken_is_said() -> None:
    slow, fast, limits = TRACE.parent, TWIN.parent, "new-findings,slower:1%"

    slower = traceq.diff(fast, slow, fail_on=limits)
    faster = traceq.diff(slow, fast, fail_on=limits)

    assert len(slower.broken) == 2
    assert not faster.broken


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: traceq.lint("none.json"), "none.json"),
        (lambda: traceq.memory(TRACE), "not a memory snapshot"),
        (lambda: traceq.lint(TRACE, select="XYZ999"), "XYZ999"),
        (lambda: traceq.regions(TRACE, by="layer"), "by='layer'"),
        (lambda: traceq.diff(TRACE, SNAPSHOT), "give two of a kind"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    ask: Any,  # noqa: ANN401
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(TraceqError) as caught:
        ask()

    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_one_file_of_several_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")

    result = traceq.lint([TRACE, broken])

    assert result.unread == 1
    assert not result.clean
    assert any(str(broken) in note for note in result.notes)
    with pytest.raises(InputError):
        traceq.lint(broken)


@pytest.mark.slow
def test_what_is_asked_ends_with_the_question() -> None:
    before = traceq.lint(TRACE).to_dict()

    own = traceq.lint(TRACE, own="torch", steps_by="none")

    assert own.to_dict() != before
    assert traceq.lint(TRACE).to_dict() == before


@pytest.mark.real
def test_ranks_of_a_job_are_told() -> None:
    ranks = recordings.job("resnet18")

    job_result = traceq.job(ranks)

    assert job_result.to_dict() == json.loads(
        run("ranks", *ranks, "--format", "json").out
    )
    assert "<pre>" in job_result._repr_html_()


@pytest.mark.real
def test_importing_traceq_loads_nothing_large() -> None:
    code = (
        "import sys, traceq; assert callable(traceq.__getattr__);"
        " print({'polars', 'rich', 'jinja2', 'typer', 'torch'} & {*sys.modules})"
    )

    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert process.stdout.strip() == "set()"


def test_a_file_that_cannot_be_read_leaves_python_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents": [')
    usual, threads = sys.getswitchinterval(), threading.active_count()

    with pytest.raises(TraceqError):
        traceq.lint(file, cache=False)

    assert (sys.getswitchinterval(), threading.active_count()) == (usual, threads)
