"""Bound of a step: one answer, printed alike by lint, summary, diff and check."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from linting import bundled_rules
from recordings import FIXTURE_TRACES, TRACES, loaded, path_of

from traceq.analysis.base.assumptions import GPU_BOUND
from traceq.analysis.replay import host_account
from traceq.analysis.replay.bound import bound_of, calibration_of, replay_of
from traceq.analysis.replay.simulation import Change, TimeScale
from traceq.analysis.summary import summarise
from traceq.analysis.time import gpu_causes, host_activity, idle_causes
from traceq.check.numbers import numbers
from traceq.differ.compare import compare, examine
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.view import View
from traceq.model import host_work
from traceq.model.recording import Recording
from traceq.report import bound as words
from traceq.report.bound import NO_GPU, bar, sentence
from traceq.report.diff import concise as diff_concise
from traceq.report.diff import full as diff_full
from traceq.report.diff import json as diff_json
from traceq.report.diff import markdown as diff_markdown
from traceq.report.lint import full as lint_full
from traceq.report.lint import json as lint_json
from traceq.report.page.views import diff_page
from traceq.report.summary import csv as summary_csv
from traceq.report.summary import json as summary_json
from traceq.report.summary import text as summary_text
from traceq.report.summary.content import content
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.model.trace import Trace

HOST_ONLY = "host  [ProfilerStep#1   ]\nhost   [aten::mm    ]"
HOST_BOUND = """
host  [ProfilerStep#1                        ][ProfilerStep#2                        ]
host   [aten::mm    ]     [aten::mm    ]       [aten::mm    ]     [aten::mm    ]
host    [cudaLaun>1]       [cudaLaun>2]         [cudaLaun>3]       [cudaLaun>4]
gpu 7         [gemm<1]          [add<2]               [gemm<3]          [add<4]
"""
GPU_BOUND_STEPS = """
host  [ProfilerStep#1                        ][ProfilerStep#2                        ]
host   [aten::mm    ][aten::mm    ]            [aten::mm    ][aten::mm    ]
host    [cudaLaun>1] [cudaLaun>2]               [cudaLaun>3] [cudaLaun>4]
gpu 7          [gemm<1      ][add<2          ][gemm<3               ][add<4          ]
"""


class Printed:
    """All that the commands print of one recording."""

    def __init__(self, trace: Trace, step_ns: int | None) -> None:
        recording = Recording("recording", trace, step_ns=step_ns)
        # A rule that needs a log is skipped: only the bound is wanted.
        report = lint([recording], bundled_rules(), Config(select=("LOG001",)))
        summary = summarise(trace, step_ns=step_ns)
        half = examine(recording, report.outcomes[0])
        diff = compare(half, half)
        wide: dict[str, Any] = {"width": 120, "color": False}
        self.texts = {
            "lint": lint_full.render(report, **wide),
            "summary": summary_text.render([summary], **wide),
            "diff": diff_full.render(diff, **wide),
            "diff concise": diff_concise.render(diff),
            "diff markdown": html.unescape(diff_markdown.render(diff)).replace(
                "\\", ""
            ),
            "diff html": html.unescape(diff_page(diff)),
        }
        compared = json.loads(diff_json.render(diff))
        self.data = {
            "lint": json.loads(lint_json.render(report))["recordings"][0]["bound"],
            "summary": json.loads(summary_json.render([summary]))["traces"][0]["bound"],
            "before": compared["before"]["bound"],
            "after": compared["after"]["bound"],
        }
        titles, row = summary_csv.render([summary]).splitlines()
        self.row = dict(zip(titles.split(","), row.split(","), strict=False))
        self.budget_ms = numbers(recording).values["step-ms"]


def _measured(trace: Trace) -> int:
    """Return a step time as it may have been measured, for want of a real one."""
    return round(0.8 * bound_of(trace, None).recorded_step_ns)


@pytest.mark.parametrize("measured", [False, True], ids=["recorded", "measured"])
def test_lint_summary_diff_and_check_print_one_bound(
    fixture_trace: Path,
    measured: bool,  # noqa: FBT001 - a case of the test
) -> None:
    trace = loaded(fixture_trace)
    step_ns = _measured(trace) if measured else None

    printed = Printed(trace, step_ns)

    bound = bound_of(trace, step_ns)
    data = printed.data["lint"]
    # Lint leaves the tables to summary.
    assert all(entry | data == entry for entry in printed.data.values())
    assert data["text"] == sentence(bound)
    for name, text in printed.texts.items():
        assert sentence(bound) in " ".join(text.split()), name
    assert data["by"] == printed.row["bound_by"] == bound.by
    assert data["step_ns"] == round(bound.step_ns)
    assert float(printed.row["step_ms"]) == pytest.approx(bound.step_ns / 1e6, abs=1e-5)
    assert printed.budget_ms == pytest.approx(bound.step_ns / 1e6, abs=1e-3)


def test_the_commands_pass_the_measured_step_on() -> None:
    file = FIXTURE_TRACES["twins/moe_batched"]

    lint = traceq("lint", file, "-v", "--step-ms", "6.02", width=120)
    summary = traceq("summary", file, "--step-ms", "6.02", width=120)
    diff = traceq("diff", file, file, "--step-ms", "6.02,6.02", width=120)

    expected = sentence(bound_of(loaded(file), 6_020_000))
    assert "6.02 ms measured without the profiler" in expected
    for answer in (lint, summary, diff):
        assert expected in " ".join(answer.out.split())


def test_every_time_of_a_summary_is_named(fixture_trace: Path) -> None:
    facts = dict(content(summarise(loaded(fixture_trace))).facts)

    for label in ("Steps", "GPU"):
        assert "as recorded" in facts[label]
    for label in ("Bound", "Time"):
        assert "estimated without the profiler" in facts[label]


@pytest.mark.parametrize(
    ("drawing", "by"), [(HOST_BOUND, "host"), (GPU_BOUND_STEPS, "gpu")]
)
def test_a_step_is_bound_by_what_it_waits_for(drawing: str, by: str) -> None:
    trace = load_drawn(drawing)

    bound = bound_of(trace, _measured(trace) if by == "host" else None)

    assert bound.by == by
    assert (bound.gpu_busy >= GPU_BOUND) == (by == "gpu")
    assert bound.gpu_busy + bound.gpu_idle == 1


def test_a_step_whose_bound_depends_on_the_profilers_share_is_only_likely_bound() -> (
    None
):
    trace = loaded(FIXTURE_TRACES["twins/moe_batched"])

    assert sentence(bound_of(trace, None)).startswith("likely GPU-bound")
    assert sentence(bound_of(trace, 6_020_000)).startswith("GPU-bound")


def test_a_trace_without_gpu_work_has_one_wording() -> None:
    printed = Printed(load_drawn(HOST_ONLY), None)

    for name, text in printed.texts.items():
        assert NO_GPU in text, name
    assert all(entry["by"] is None for entry in printed.data.values())
    assert printed.data["lint"]["step_from"] == "recorded"


def test_bars_have_a_glyph_for_each_word_of_the_analyses() -> None:
    source = Path(host_activity.__file__).read_text(encoding="utf-8")
    of_host = set(re.findall(r'^[A-Z][A-Z_]+ = "(.+)"$', source, re.MULTILINE))
    of_host |= {host_activity.DISPATCH, host_activity.UNKNOWN}
    beyond = {host_account.NEW_SHAPE, host_account.SLOW}

    assert tuple(words.FILL) == gpu_causes.ON_GPU
    assert {*words.LETTERS, host_work.UNKNOWN} == of_host | beyond | {
        *idle_causes.CAUSES
    }
    assert host_work.UNKNOWN == idle_causes.UNKNOWN


def test_a_measured_step_is_the_step_of_the_bound() -> None:
    trace = load_drawn(HOST_BOUND)

    bound = View(trace, 30_000).bound

    assert (bound.step_ns, bound.step_from, bound.measured) == (
        30_000,
        "measured",
        True,
    )


def test_a_bar_is_one_line_whatever_the_trace_says(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
        | {"pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {"stream": 7}}
        for ts, dur in ((0, 10**12), (100, 10**12), (300, 5))
    ]
    file.write_text(json.dumps({"traceEvents": events}))

    drawn = bar(bound_of(loaded(file), None))

    assert len(drawn) < 200


def test_every_letter_of_a_bar_is_in_its_legend(fixture_trace: Path) -> None:
    trace = loaded(fixture_trace)
    drawn, _, legend = bar(bound_of(trace, None)).partition("  ")

    listed = {part.strip()[:1] for part in legend.split(",")}
    assert {*drawn} - {" "} <= listed


@pytest.mark.parametrize("name", ["attn_manual", "copies"])
@pytest.mark.parametrize("share", [0.82, 0.88, 0.91, 0.94, 0.96])
def test_a_faster_gpu_shortens_a_step_just_where_the_gpu_is_said_to_bound_it(
    name: str, share: float
) -> None:
    """The GPU alone needs this share of the measured step."""
    trace = loaded(TRACES[name])
    replay = replay_of(trace)
    step_ns = round(replay.run(scale=TimeScale(host=0)).step_ns / share)
    scale = calibration_of(trace, step_ns).likely
    faster = Change(kernels=frozenset(trace.kernels["id"]), kernel_share=0.3)
    before, after = (replay.run(fix, scale).step_ns for fix in ([], [faster]))

    by_gpu = bound_of(trace, step_ns).by == "gpu"
    assert (before - after > 0.15 * before) == by_gpu
    assert by_gpu or share < GPU_BOUND


def test_the_host_bounds_a_measured_step_without_gpu_work_in_it() -> None:
    trace = load_drawn("""
        host   [aten::mm          ][ProfilerStep#1   ][ProfilerStep#2   ]
        host   [cudaLaunchKernel>1] [aten::add      ]  [aten::add      ]
        gpu 7     [gemm<1        ]
        """)

    bound = View(trace, 1_000_000).bound

    assert (bound.by, bound.step_ns) == ("host", 1_000_000)


@pytest.mark.real
def test_near_the_balance_both_bound_the_step() -> None:
    trace = loaded(path_of("attn_flash.trace.json.gz"))
    alone = replay_of(trace).run(scale=TimeScale(host=0)).step_ns
    at_balance = round(alone / GPU_BOUND)
    bounds = [
        bound_of(trace, round(at_balance * factor)) for factor in (0.92, 1.0, 1.25)
    ]

    assert [bound.both for bound in bounds] == [False, True, False]
    assert sentence(bounds[1]).startswith("GPU and host bound it both")
