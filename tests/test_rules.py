"""Invariants of every rule: its page, its examples, and that it never fails."""

from __future__ import annotations

import gzip
import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from conftest import ROOT
from goldens import updating
from linting import bundled_rules, example_findings, linted, outcome
from recordings import FIXTURE_TRACES
from rule_sources import write_finds

from traceq import load
from traceq.linter import Bad, Good, Need
from traceq.linter.run import Views, run_rule
from traceq.model.recording import Recording
from traceq.testing import draw
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.linter import Finding, Rule

SECTIONS = [
    "## What it does",
    "## Why is this bad?",
    "## How to fix it",
    "## When it is wrong",
]
RULES = list(bundled_rules().values())
# A drawing whose last span is open: a file that was cut, in which order matters.
_CUT = re.compile(r"\[[^\]]*\Z")
_CODE = re.compile(r"[A-Z]{3}\d{3}")

Event = dict[str, Any]
Document = dict[str, Any]

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def source(rule: type[Rule]) -> Path:
    return Path(inspect.getfile(rule))


# Examples.


EXAMPLES = [
    pytest.param(rule, number, id=f"{rule.code}-{type(example).__name__}-{number}")
    for rule in RULES
    for number, example in enumerate(rule.examples)
]


@pytest.mark.golden
@pytest.mark.parametrize(("rule", "number"), EXAMPLES)
def test_an_example_finds_what_it_says_and_nothing_else(
    rule: type[Rule], number: int
) -> None:
    example = rule.examples[number]
    expected = example.sentences if isinstance(example, Bad) else ()
    result = tuple(finding.message for finding in example_findings(rule.code, number))

    # The same number of findings in other words: someone reworded the rule.
    reworded = len(result) == len(expected) > 0
    if result != expected and reworded and updating():
        assert isinstance(example, Bad)
        write_finds(rule, example, result)
    else:
        assert result == expected


DRAWN_BAD = [
    pytest.param(rule, number, id=f"{rule.code}-Bad-{number}")
    for rule in RULES
    for number, example in enumerate(rule.examples)
    if isinstance(example, Bad) and example.drawing and not _CUT.search(example.drawing)
]


def findings_of(rule: type[Rule], document: Document, folder: Path) -> list[Finding]:
    path = folder / "drawn.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    trace = load(path, cache=False)
    return run_rule(rule(), Views(Recording("drawn", trace)))


def backwards(document: Document) -> Document:
    """Turn the file round, but for spans of the same extent.

    Which of these is around the other is said by nothing but their order.
    """
    groups: dict[object, list[Event]] = {}
    for event in document["traceEvents"]:
        extent = tuple(event.get(key) for key in ("pid", "tid", "ts", "dur"))
        groups.setdefault(extent, []).append(event)
    events = [event for group in reversed(groups.values()) for event in group]
    return document | {"traceEvents": events}


def an_hour_later(document: Document) -> Document:
    hour = 3_600_000_000
    events = [
        event | {"ts": event["ts"] + hour} if "ts" in event else event
        for event in document["traceEvents"]
    ]
    return document | {"traceEvents": events}


@pytest.mark.real
@pytest.mark.parametrize(("rule", "number"), DRAWN_BAD)
def test_findings_do_not_depend_on_the_order_or_origin_of_events(
    rule: type[Rule], number: int, tmp_path: Path
) -> None:
    example = rule.examples[number]
    document = draw(example.drawing, example.args, DEVICE)

    changed = findings_of(rule, an_hour_later(backwards(document)), tmp_path)

    assert changed == [*example_findings(rule.code, number)] != []


# House rules.


@each_rule
def test_a_rule_has_a_bad_and_a_good_example(rule: type[Rule]) -> None:
    kinds = {type(example) for example in rule.examples}

    assert kinds == {Bad, Good}


@each_rule
def test_a_page_has_its_sections_in_order(rule: type[Rule]) -> None:
    lines = rule.page().splitlines()

    assert [line for line in lines if line.startswith("#")] == SECTIONS, (
        f"the docstring in {source(rule)} has these four sections, in this order;"
        " what was measured is a row of rules/measured.toml"
    )
    assert rule.summary().endswith(".")
    for before, after in zip(SECTIONS, [*SECTIONS[1:], None], strict=True):
        end = lines.index(after) if after else len(lines)
        assert "".join(lines[lines.index(before) + 1 : end]).strip()


@each_rule
def test_a_file_is_named_after_its_rule_and_lies_with_its_family(
    rule: type[Rule],
) -> None:
    path = source(rule)
    family = [other for other in RULES if source(other).parent == path.parent]

    assert path.stem == rule.name().replace("-", "_")
    assert path.parent.parent == ROOT / "rules"
    assert {other.code[:3] for other in family} == {rule.code[:3]}
    assert _CODE.fullmatch(rule.code)
    assert str(inspect.getmodule(rule).__doc__).startswith(f"{rule.code}: ")


@each_rule
def test_a_name_says_what_is_wrong_and_not_the_cure(rule: type[Rule]) -> None:
    assert rule.name().partition("-")[0] not in ("avoid", "use", "prefer", "no")


@each_rule
def test_every_option_says_what_it_means(rule: type[Rule]) -> None:
    for option in rule.options():
        assert option.meaning.endswith(".")
        assert isinstance(option.default, (bool, int, float, str))


def test_what_explains_a_finding_names_rules_that_are_there() -> None:
    named = {
        code
        for rule in RULES
        if Need.LOG in rule.needs
        for code in _CODE.findall(source(rule).read_text(encoding="utf-8"))
    }

    assert named <= set(bundled_rules())


# Real traces, whole and with parts missing.


def test_no_rule_fails_on_a_real_trace(whole_trace: Path) -> None:
    report = linted(whole_trace)

    assert not report.crashed
    # Rules on jobs say that they are skipped where there is one; those on recordings
    # without a GPU do not look at others.
    assert report.facts
    concerned = [
        rule for rule in RULES if not (Need.NO_GPU in rule.needs and report.facts.gpu)
    ]
    jobs = sum(Need.JOB in rule.needs for rule in RULES)
    assert report.ran + len(report.skipped) in (len(concerned), len(concerned) - jobs)
    assert report.bound
    step_ns = report.bound.step_ns
    assert all(0 <= finding.saves_ns <= step_ns for finding in report.findings)
    for item in report.findings:
        json.dumps(dict(item.data))
        assert all(entry.name or entry.value is not None for entry in item.evidence)
        assert all(len(entry.label) <= 8 for entry in item.evidence)
        assert item.message
        assert item.advice


def of_category(*names: str) -> Callable[[Event], bool]:
    return lambda event: event.get("cat") in names


def is_step(event: Event) -> bool:
    return str(event.get("name")).startswith(("ProfilerStep#", "Optimizer.step#"))


WITHOUT: dict[str, Callable[[Event], bool]] = {
    "gpu": of_category("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"),
    "stacks": of_category("python_function"),
    "steps": is_step,
    "ops": of_category("cpu_op"),
    "calls": of_category("cuda_runtime", "cuda_driver"),
    "regions": of_category("user_annotation", "gpu_user_annotation"),
    "memory": of_category("cpu_instant_event"),
    "host": of_category(
        "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function"
    ),
}
SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
NEEDED = {"gpu": Need.GPU, "stacks": Need.STACKS, "steps": Need.STEPS, "ops": Need.OPS}


# Between them they have findings of most families, with stacks and without.
VARIED = ("recompile", "twins/moe_loop", "twins/norm_mismatch")


def stripped(fixture: Path, missing: str, folder: Path) -> Recording:
    document = orjson.loads(gzip.decompress(fixture.read_bytes()))
    events = document["traceEvents"]
    if missing == "shapes":
        for event in events:
            for name in SHAPES:
                event.get("args", {}).pop(name, None)
    else:
        events = [event for event in events if not WITHOUT[missing](event)]
    path = folder / "stripped.json"
    path.write_bytes(orjson.dumps(document | {"traceEvents": events}))
    # Where the marks of steps are gone, they would be found by what repeats.
    steps_by = "none" if missing == "steps" else ""
    return Recording(missing, load(path, steps_by=steps_by, cache=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("missing", ["shapes", *WITHOUT])
def test_no_rule_fails_where_a_part_of_the_trace_is_missing(
    name: str, missing: str, tmp_path: Path
) -> None:
    report = outcome(stripped(FIXTURE_TRACES[name], missing, tmp_path))

    assert not report.crashed
    need = Need.SHAPES if missing == "shapes" else NEEDED.get(missing)
    skipped = {item.code for item in report.skipped}
    concerned = [rule for rule in RULES if Need.NO_GPU not in rule.needs]
    if missing == "gpu":
        concerned = [rule for rule in concerned if not rule.without_gpu]
    assert {rule.code for rule in concerned if need in rule.needs} <= skipped


@pytest.mark.real
@pytest.mark.parametrize("name", [*VARIED, "copies", "twins/graph_record"])
@pytest.mark.slow
def test_findings_in_a_real_trace_do_not_depend_on_order_or_origin(
    name: str, tmp_path: Path
) -> None:
    document = orjson.loads(gzip.decompress(FIXTURE_TRACES[name].read_bytes()))
    path = tmp_path / "changed.json"
    path.write_bytes(orjson.dumps(an_hour_later(backwards(document))))

    changed = outcome(Recording("trace", load(path, cache=False)))

    assert changed.findings == linted(FIXTURE_TRACES[name]).findings


@pytest.mark.parametrize("code", bundled_rules())
def test_every_page_has_the_fix_as_code_before_and_after(code: str) -> None:
    page = bundled_rules()[code].page()
    section = page.partition("## How to fix it")[2].partition("\n## ")[0]

    example = bundled_rules()[code].example()

    assert f"```diff\n{example}\n```" in section
    lines = example.splitlines()
    assert all(line[:2] in ("- ", "+ ", "  ") for line in lines)
    assert any(line[0] in "-+" for line in lines)
    assert max(map(len, lines)) <= 84


def test_a_finding_of_a_rule_with_several_fixes_shows_no_example_of_one() -> None:
    rule = bundled_rules()["SYN001"]

    assert rule.several_fixes
    assert rule().finding("waits", subject="x").example == ""
    assert rule.example()
