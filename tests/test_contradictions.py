"""No report says what cannot be: empty ranges, None, "0.333 times", steps of none."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from diffing import half_of
from layouts import timed
from linting import linted
from recordings import loaded, path_of

from traceq.analysis.summary import summarise
from traceq.differ.compare import compare
from traceq.errors import InputError
from traceq.inputs.load_trace import load
from traceq.model.finding import Severity
from traceq.model.lint_report import Report
from traceq.report.diff import full as diff_full
from traceq.report.diff import markdown as diff_markdown
from traceq.report.lint import full as lint_full
from traceq.report.summary import text as summary_text
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

NEVER = {
    # Advice may index with it.
    "None": r"\bNone\b(?!\])",
    # Examples of fixes are code: float("-inf").
    "nan": r"\b(nan|inf)\b(?!\")",
    "a count below one": r"(?<![\d.])0(\.\d+)? times\b",
    "one of several": r"(?<![\w.,#])1 (events|steps|kernels|launches|calls|findings"
    r"|rules|ranks|copies|tensors|ops|operators|allocations|times)\b",
    "a or an": r"\ba (unsigned|int\d|[aeio]\w+ \[)",
    "an exponent": r"\d[eE]\+\d",
    "a name of C++": r"\b(unsigned char|long int|c10::\w+) \[",
}
STEPS = r"\ba step\b|/step\b|\bonce in \d+ steps\b"
RANGE = re.compile(r"\btorch (\d+)\.(\d+) to (\d+)\.(\d+)")
# Not in a verdict: of two traces that are compared, one may have no GPU work.
BUSY = re.compile(r"(?<!is )\bbusy (?!0%|<1%)\d+%")


def contradictions(text: str, *, steps: bool) -> list[str]:
    """Return the words of a report that contradict themselves or what is known."""
    patterns = [*NEVER.values(), *([] if steps else [STEPS])]
    result = [match[0] for pattern in patterns for match in re.finditer(pattern, text)]
    for match in RANGE.finditer(text):
        oldest, newest = map(int, match.groups()[:2]), map(int, match.groups()[2:])
        if tuple(oldest) >= tuple(newest):
            result.append(match[0])
    if "no GPU work in the trace" in text and BUSY.search(text):
        result.append("no GPU work, but it is busy")
    return result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch 2.12 to 2.7", "torch 2.12 to 2.7"),
        ("for this GPU in None", "None"),
        ("copied 0.333 times a step", "0.333 times"),
        ("1.36e+03 kernels a step", "6e+0"),
        ("times only; 1 events", "1 events"),
        ("copies a unsigned char [8]", "a unsigned"),
        ("no GPU work in the trace\nbusy 85%, idle 15%", "no GPU work, but it is busy"),
    ],
)
def test_a_contradiction_is_seen(text: str, message: str) -> None:
    assert message in contradictions(text, steps=True)


def test_reports_do_not_contradict_themselves(real_trace: Path) -> None:
    steps = bool(loaded(real_trace).steps.height)
    report = Report((linted(real_trace),), Severity.warning)
    lint = lint_full.render(report, width=None, color=False)
    summary = summary_text.render(
        [summarise(loaded(real_trace))], width=None, color=False
    )

    assert contradictions(lint + summary, steps=steps) == []


def test_more_of_a_summary_does_not_contradict_itself(fixture_trace: Path) -> None:
    for more in ("--critical-path", "--host"):
        text = traceq("summary", fixture_trace, more).out
        assert contradictions(text, steps=True) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a100_alexnet", "a100_vit_graph"),
        ("a100_vit_graph", "a100_alexnet"),
        ("a100_vit_graph", "legacy_bare_list"),
        ("legacy_bare_list", "t4_amp"),
        ("t4_amp", "t4_fp32"),
        ("diff_base", "diff_test"),
        ("mi250_minitoy", "cpu_only_rank34"),
        ("v100_tp2_rank0", "v100_tp2_rank1"),
    ],
)
def test_comparisons_do_not_contradict_themselves(before: str, after: str) -> None:
    files = [path_of(f"public/{name}.json.gz") for name in (before, after)]
    diff = compare(*(half_of(file, findings=True) for file in files))
    steps = any(loaded(file).steps.height for file in files)
    text = diff_full.render(diff, width=None, color=False)

    assert contradictions(text + diff_markdown.render(diff), steps=steps) == []


ONE = """
    host   [train.py(3): main                ]
    host    [aten::item                     ]
    host     [aten::_local_scalar_dense    ]
    host      [cudaStreamSynchronize      ]
    gpu 7     [gemm<1                    ]
"""


def write(tmp_path: Path, document: object, indent: int | None = None) -> Path:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    return file


def test_a_file_that_was_written_again_has_no_empty_range_of_versions(
    tmp_path: Path,
) -> None:
    # As kineto wrote the base time until 2.7, and a key a line, as from 2.12.
    document = draw(ONE) | {"baseTimeNanoseconds": 1_700_000_000_000_000_000}

    facts = load(write(tmp_path, document, indent=2), cache=False).facts

    assert facts.torch == "torch 2.4 or later"


def test_signs_that_contradict_each_other_say_nothing_of_the_version(
    tmp_path: Path,
) -> None:
    events = [timed("a", 1, 1, cat="kernel"), timed("b", 1, 1, cat="Operator")]

    facts = load(write(tmp_path, {"traceEvents": events}), cache=False).facts

    assert facts.torch == "torch unknown"


@pytest.mark.real
def test_without_steps_nothing_is_said_of_a_step(tmp_path: Path) -> None:
    file = write(tmp_path, draw(ONE))

    for command in (["lint"], ["summary"], ["summary", "--host"]):
        text = traceq(*command, file, "--no-cache").out
        assert contradictions(text, steps=False) == []


@pytest.mark.slow
def test_of_traces_without_steps_no_change_is_one_of_a_step(tmp_path: Path) -> None:
    before = write(tmp_path, draw(ONE))
    after = tmp_path / "after.json"
    less = ONE.replace("[gemm<1                    ]", "[gemm<1   ]")
    after.write_text(json.dumps(draw(less)), encoding="utf-8")

    for pair in ((before, before), (before, after), (after, before)):
        for form in ("full", "concise", "markdown", "html"):
            text = traceq("diff", *pair, "--format", form, "--no-cache").out
            shown = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
            assert contradictions(shown, steps=False) == []


def test_a_trace_of_one_event_has_one_event(tmp_path: Path) -> None:
    file = write(tmp_path, [timed("aten::mm", 1, 2, cat="cpu_op")])

    assert "; 1 event, " in traceq("summary", file, "--no-cache").out


def test_a_torch_trace_without_work_is_not_called_another_tools(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            timed("PyTorch Profiler (0)", 1, 2, cat="Trace"),
            {"ph": "i", "name": "Record Window End", "ts": 3, "pid": "", "tid": ""},
        ],
    }

    with pytest.raises(InputError, match="recorded no operator, kernel or region"):
        load(write(tmp_path, document), cache=False)
