"""The first screen of lint: short for every trace, with figures that agree."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from command import traceq
from linting import bundled_rules, linted
from msgspec import structs
from recordings import FIXTURE_TRACES, PUBLIC, ROOT, TRACES, by_trace

from traceq.common.units import percents, time
from traceq.linter.minor import weighed
from traceq.linter.one_edit import with_one_edit
from traceq.model.finding import NOWHERE, Finding, Place, Severity
from traceq.model.lint_report import Allow, Crashed, Report
from traceq.report.bound import parts
from traceq.report.lint import brief, explain, rows, short, step_bar
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.lint_report import RecordingReport

MOST_LINES = 30
MEDIAN_LINES = 22
COPIES = FIXTURE_TRACES["copies"]
# Evidence in time of the GPU's own work, which the profiler does not make longer, and
# of the replayed step.
GPU_TIME = {
    *("gpu", "peak", "time", "kernels", "forward", "backward", "copies", "saved"),
    *("part", "exposed", "casts", "norms", "then", "longest", "making", "logits"),
    "for",
}
REPLAYED = {"LCH002": {"waits", "around", "gaps"}, "NET002": {"waits"}}
LABELS = re.compile("recorded|estimated|measured|at 40 GB/s")


def screen(
    outcome: RecordingReport, width: int = 100, *, color: bool = False
) -> list[str]:
    report = Report((outcome,), Severity.warning)
    return brief.render(report, width=width, color=color).splitlines()


def crowded(outcome: RecordingReport) -> RecordingReport:
    """Return the outcome with 40 findings, long names, and all there may be to note."""
    (first, *_) = outcome.findings
    place = Place("a/long/path/to/the/folder/of/the_model_of_the_day.py", 1234, "f")
    long = replace(first, place=place, message=f"{first.message} " * 5)
    more = [replace(long, subject=str(at)) for at in range(40)]
    crashed = [Crashed(f"ABC{at:03}", "a-rule", "KeyError: x" * 9) for at in range(9)]
    return structs.replace(
        outcome,
        name="a/very/long/path/" * 9 + "trace.json",
        findings=(*more, *outcome.findings),
        crashed=tuple(crashed),
        below_min_cost=3,
        in_baseline=2,
    )


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_a_screen_has_at_most_30_lines_of_100_columns(path: Path) -> None:
    lines = screen(linted(path))

    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
def test_the_median_screen_has_at_most_22_lines() -> None:
    every = (FIXTURE_TRACES | PUBLIC).values()

    assert (
        statistics.median(len(screen(linted(path))) for path in every) <= MEDIAN_LINES
    )


@pytest.mark.parametrize("width", [40, 80, 100, 160])
@pytest.mark.parametrize("color", [False, True])
def test_a_crowded_screen_has_at_most_30_lines(width: int, *, color: bool) -> None:
    outcome = crowded(linted(COPIES))
    unused = tuple(Allow(f"ABC{at:03}", "no", "x" * 200) for at in range(9))
    report = Report((outcome,), Severity.warning, unused)

    lines = brief.render(report, width=width, color=color).splitlines()

    assert len(lines) <= MOST_LINES + (10 if width < 80 else 0)
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert max(map(len, plain)) <= max(width, 80) if width < 160 else 120


@pytest.mark.parametrize("count", [2, 8, 100])
def test_many_recordings_have_at_most_30_lines(count: int) -> None:
    report = crowded(linted(COPIES))
    many = [structs.replace(report, name=f"job/rank{at}.json") for at in range(count)]

    text = brief.render(Report(tuple(many), Severity.warning), width=100, color=False)

    assert text.count("\n") <= MOST_LINES
    assert text.startswith(f"{count} recordings: {count} GPU-bound; ")


def test_no_recording_is_one_line() -> None:
    nothing = Report((), Severity.warning)

    assert brief.render(nothing, width=100, color=False) == "no recordings\n"


def test_what_has_no_line_is_counted() -> None:
    crowd = crowded(linted(COPIES))
    text = "\n".join(screen(crowd))

    shown = len(re.findall("^CPY.*the_model_of_the_day.py:1234", text, re.MULTILINE))
    assert f"+ {len(crowd.findings) - shown} more" in text


# Figures that agree.


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_parts_of_a_step_are_not_more_than_the_step(path: Path) -> None:
    bound = linted(path).bound
    assert bound is not None
    whole = bound.bottleneck.step_ns if bound.bottleneck else 0

    times = [ns for _, ns in parts(bound)]

    assert sum(times) <= 1.001 * whole
    assert not whole or sum(percents(times, whole)) <= 100


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_savings_in_turn_add_up_to_the_plan(path: Path) -> None:
    report = linted(path)
    saved = [item.saves_after_ns for item in report.findings]

    known = [ns for ns in saved if ns is not None]

    left = report.together[-1].step_ns if report.together else report.step_ns
    assert sum(known) == report.step_ns - left
    assert all(ns >= 0 for ns in known)
    assert all(
        (item.saves_after_ns is None) == (bool(item.minor) or not item.saves_ns)
        for item in report.findings
    )


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_no_minor_finding_saves_more_than_a_regular_one(path: Path) -> None:
    findings = linted(path).findings
    minor = [item for item in findings if item.minor]
    regular = [item for item in findings if not item.minor]

    for size in ("saves_ns", "cost_bytes"):
        most = max((getattr(item, size) for item in minor), default=0)
        assert all(
            getattr(item, size) >= most or not getattr(item, size) for item in regular
        )
    assert list(findings) == [*regular, *minor]


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_findings_are_in_the_order_of_their_savings(path: Path) -> None:
    plain = [
        item.saves_ns
        for item in linted(path).findings
        if not (item.minor or item.residual or item.leads or item.after)
        and item.severity is not Severity.error
    ]

    assert plain == sorted(plain, reverse=True)


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_a_recorded_time_says_so_next_to_an_estimated_one(path: Path) -> None:
    report = linted(path)
    unlabelled = [
        (item.code, line.label, line.note)
        for item in report.findings
        for line in item.evidence
        if line.unit == "ns"
        and line.label not in GPU_TIME | REPLAYED.get(item.code, set())
        and not LABELS.search(f"{line.label} {line.note}")
    ]

    assert unlabelled == []


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_the_recorded_step_is_labelled(path: Path) -> None:
    report = linted(path)
    assert report.bound is not None
    recorded = time(report.bound.recorded_step_ns)
    line = short.step(report)

    assert re.search(rf"{re.escape(recorded)}( a step)?,? as recorded", line)


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_a_rough_figure_has_no_decimals_but_halves(path: Path) -> None:
    texts = [f"{item.message}; {item.advice}" for item in linted(path).findings]

    rough = [match for text in texts for match in re.findall(r"about \d+\.\d+", text)]

    assert all(entry.endswith(".5") for entry in rough)


@pytest.mark.parametrize("path", by_trace(TRACES))
def test_rules_are_counted_once(path: Path) -> None:
    report = linted(path)
    others = [skipped.code for skipped in (*report.skipped, *report.not_applicable)]
    others += [crashed.code for crashed in report.crashed]

    assert report.ran + len(others) == len(bundled_rules())
    assert len(others) == len({*others})


# What is minor, and what is in doubt.


def finding(**parts: object) -> Finding:
    result = Finding("ABC001", "odd", Severity.warning, "odd", "", NOWHERE, "odd", 1)
    return replace(result, **parts)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("saves_ns", "minor"), [(9, "saves less than 1% of the step"), (10, "")]
)
def test_a_finding_is_minor_if_it_saves_little(saves_ns: int, minor: str) -> None:
    result = weighed(finding(saves_ns=saves_ns), step_ns=1000, priced=True)

    assert result.minor == minor
    assert result.severity is (Severity.info if minor else Severity.warning)


@pytest.mark.parametrize("doubt", ["", "preview"])
def test_a_finding_in_doubt_that_saves_much_is_not_minor(doubt: str) -> None:
    doubted = finding(saves_ns=500, severity=Severity.info, doubt=doubt)

    result = weighed(doubted, step_ns=1000, priced=True)

    assert (result.minor, result.doubt) == ("", doubt or "uncertain")
    assert result.severity is Severity.info


def test_much_memory_that_a_rule_thinks_little_of_is_optional() -> None:
    much = finding(cost_bytes=600 << 20, severity=Severity.info)

    result = weighed(much, reserved=2 << 30)

    assert (result.minor, result.doubt) == ("", "optional")


@pytest.mark.parametrize(
    ("mib", "reserved_mib"), [(45, 1900), (400, 500), (600, 100_000)]
)
def test_memory_below_a_twentieth_or_500_mib_that_may_stay_is_minor(
    mib: int, reserved_mib: int
) -> None:
    little = finding(cost_bytes=mib << 20, severity=Severity.info)

    result = weighed(little, reserved=reserved_mib << 20)

    assert result.minor == "holds less than 500 MiB or 5% of the reserved memory"


def test_a_finding_that_its_rule_knows_to_be_minor_stays_minor() -> None:
    room = finding(cost_bytes=60 << 30, severity=Severity.info, minor="there is room")

    assert weighed(room, reserved=64 << 30) is room


def test_memory_that_another_fix_frees_is_minor_and_named_there() -> None:
    slow = finding(code="ATT003", place=Place("a/model.py", 9, "forward"))
    held = finding(
        code="MEM006", place=Place("/x/a/model.py", 12, "forward"), cost_bytes=1 << 30
    )

    first, second = with_one_edit([held, slow])

    assert (first.code, first.evidence[0].value) == ("ATT003", 1 << 30)
    assert second.minor == "the fix of ATT003 frees it"


def test_memory_of_another_function_is_not_freed_by_that_fix() -> None:
    slow = finding(code="ATT003", place=Place("model.py", 9, "forward"))
    held = finding(code="MEM006", place=Place("model.py", 30, "scores"), cost_bytes=1)

    assert with_one_edit([held, slow]) == [held, slow]


def test_a_remark_without_a_cost_is_minor() -> None:
    result = weighed(finding(severity=Severity.info), step_ns=1000)

    assert result.minor == "costs no time or memory of its own"


def test_json_states_savings_alone_and_in_turn_and_why_a_finding_is_minor() -> None:
    (result,) = json.loads(traceq("lint", COPIES, "--format", "json").out)["recordings"]
    first, *_ = result["findings"]
    (share,) = (item for item in result["findings"] if item["code"] == "CPY001")

    assert first["saves_alone_ns"] == first["saves_ns"]
    assert (
        first["saves_after_ns"] == result["step_ns"] - result["together"][0]["step_ns"]
    )
    assert (first["minor"], first["minor_reason"], first["doubt"]) == (
        False,
        None,
        None,
    )
    assert share["minor"]
    assert share["minor_reason"] == "costs no time or memory of its own"


# The parts of the screen.


def test_the_bar_has_the_words_of_what_takes_long() -> None:
    bound = linted(COPIES).bound
    assert bound is not None

    bar, below = step_bar.lines(bound, 100, color=False)

    assert len(bar) == 100
    assert re.search("▓ moving memory 2.% ▓+░ copying to or from the host 60% ░+", bar)
    assert below.startswith("█ computing 11%")


def test_a_line_of_the_table_has_code_saving_location_and_message() -> None:
    (line,) = (line for line in screen(linted(COPIES)) if re.match("CPY003 +6", line))

    assert re.search(
        r"6\.43 ms 49% +6\.80 ms  dev_cases\.py:154 in step  a float32", line
    )


def test_a_long_path_is_cut_in_front_of_the_file() -> None:
    place = rows.location(Place("src/of/the/whole/model.py", 42, "f", line_is="call"))

    assert rows.cut_location(place, 20) == "…/whole/model.py:42"
    assert rows.cut_location(place, 5) == "model.py:42"


def test_a_finding_without_a_saving_has_its_line() -> None:
    report = structs.replace(linted(COPIES), findings=(finding(),), together=())

    assert "ABC001  odd" in screen(report)


def test_a_fix_without_a_saving_comes_after_those_with_one() -> None:
    vague = finding(advice="look at it")
    saving = finding(advice="use another kernel", saves_ns=10**6)
    broken = finding(advice="free it", severity=Severity.error)

    _, *lines = short.fixes([broken, vague, saving], 80, color=False)

    assert [line.split("  ")[1] for line in lines] == [
        "free it",
        "use another kernel",
        "look at it",
    ]


def test_the_fix_that_saves_most_is_named_though_it_comes_after_others() -> None:
    small = [finding(advice=f"use {at}", saves_ns=(9 - at) * 10**6) for at in range(4)]
    large = finding(advice="replay a graph", saves_ns=10**8, after=("ABC001",))

    _, *lines = short.fixes([*small, large], 80, color=False)

    assert [line.split("  ")[1] for line in lines] == [
        "use 0",
        "use 1",
        "replay a graph",
    ]


def test_a_fix_is_not_cut_before_a_second_line() -> None:
    advice = "only the GPU knows how many elements a mask selects: multiply by the mask"

    _, *lines = short.fixes([finding(advice=advice, saves_ns=1)], 60, color=False)

    assert " ".join(line.split("  ")[-1].strip() for line in lines) == advice


@pytest.mark.parametrize(
    ("alone", "text"), [(10**5, "save less than 1.00 ms"), (10**7, "2 minor findings")]
)
def test_findings_that_another_fix_covers_are_not_called_smaller(
    alone: int, text: str
) -> None:
    first = finding(saves_ns=10**6)
    left = [finding(saves_alone_ns=alone, minor="covered"), finding(minor="small")]

    assert text in short.more(left, [first])


def test_a_preview_finding_says_so_in_its_line() -> None:
    result = finding(saves_ns=10**7, doubt="preview", severity=Severity.info)
    outcome = structs.replace(linted(COPIES), findings=(result,), together=())

    assert any(line.endswith("  preview: odd") for line in screen(outcome))


def test_a_recording_that_no_rule_can_look_at_is_not_called_clean() -> None:
    outcome = structs.replace(linted(COPIES), findings=(), together=(), ran=0)

    assert short.verdict(outcome).endswith("; no rule could run")


def test_a_crashed_rule_is_on_the_screen() -> None:
    crashed = (Crashed("ABC001", "odd", "KeyError: 'x'"),)
    lines = screen(structs.replace(linted(COPIES), crashed=crashed))

    assert any(line.startswith("note: ABC001 crashed: KeyError") for line in lines)


def test_the_plan_is_that_of_the_long_text() -> None:
    report = linted(COPIES)

    assert "4.49 of 13.2 ms a step" in short.plan(report)
    assert "about 4.49 ms instead of 13.2 ms a step" in words.together(report)


def test_a_narrow_screen_leaves_the_message_room() -> None:
    (line,) = (line for line in screen(linted(COPIES), 80) if "6.43 ms" in line)

    assert "6.80 ms" not in line
    assert line.endswith("a float32 [16,512,2048] of 64.0 MiB…")


# Details.


def test_verbose_prints_all_of_each_finding() -> None:
    answer = traceq("lint", COPIES, "-v")

    assert "\n  fix     pin the tensor" in answer.out
    assert "\nMinor:\n" in answer.out


def test_the_long_text_has_a_line_for_minor_findings() -> None:
    answer = traceq("lint", COPIES, "--format", "full")

    assert "\n  CPY001 " in answer.out.partition("\nMinor:")[2]


@pytest.mark.parametrize("rule", ["CPY001", "cpy001", "copy-share"])
def test_a_minor_finding_is_explained_in_full(rule: str) -> None:
    answer = traceq("lint", COPIES, "--explain", rule)

    assert answer.out.startswith("CPY001 copy-share\n")
    assert answer.out.endswith("\n  minor: costs no time or memory of its own\n")
    assert answer.status == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("SYN001",), "SYN001 ran and has no finding here"),
        (("LOG001",), "LOG001 did not run: there is no log: pass --log FILE"),
        (("RNK001",), "RNK001 did not run: it compares the ranks of a job"),
        (
            ("SYN001", "--ignore", "SYN001"),
            "SYN001 did not run: the configuration or the command leaves it out",
        ),
    ],
)
def test_a_rule_without_a_finding_says_why(
    options: tuple[str, ...], sentence: str
) -> None:
    answer = traceq("lint", COPIES, "--explain", *options)

    assert answer.out.startswith(sentence)
    assert answer.out.count("\n") == 1


def test_a_crashed_rule_is_explained_by_its_error() -> None:
    crashed = (Crashed("ABC001", "odd", "KeyError: 'x'"),)
    outcome = structs.replace(linted(COPIES), crashed=crashed)
    report = Report((outcome,), Severity.warning)

    text = explain.render(report, "ABC001", selected=True, width=100, color=False)

    assert text == "ABC001 crashed: KeyError: 'x'\n"


def test_an_unknown_rule_cannot_be_explained() -> None:
    answer = traceq("lint", COPIES, "--explain", "SYM001")

    assert (answer.status, answer.out) == (2, "")
    assert "there is no rule 'SYM001': did you mean SYN001?" in answer.err


def test_one_finding_is_explained_as_text_alone() -> None:
    answer = traceq("lint", COPIES, "--explain", "CPY001", "--format", "json")

    assert (answer.status, answer.out) == (2, "")
    assert "--explain prints text: leave out --format" in answer.err


def test_a_folder_of_fixtures_fits_a_screen() -> None:
    answer = traceq("lint", ROOT / "fixtures" / "sweep")

    assert answer.out.count("\n") <= MOST_LINES
