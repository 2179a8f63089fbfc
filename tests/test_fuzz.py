"""Fuzzed files: a trace, or one sentence; never a crash, a hang or a flood.

These tests check nothing else: the content of a whole file is tested elsewhere.
"""

from __future__ import annotations

import json
import random
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from fuzz_seeds import Seeds, read_seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, timed
from mutate import pickle_of, text_of

import traceq
from traceq.analysis.summary import summarise
from traceq.errors import TraceqError
from traceq.formats.snapshot import read_snapshot
from traceq.linter.config import read_config
from traceq.report.summary import csv as summary_csv
from traceq.report.summary import json as summary_json
from traceq.report.summary import markdown as summary_markdown
from traceq.report.summary import text as summary_text
from traceq.testing import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.analysis.summary import Summary

DOCUMENT = draw(
    """
    host     [ProfilerStep#1                                       ]
    host      [train.py(3): main                                  ]
    host       [aten::mm            ] [autograd::engine::evaluate_function: MmBackward0]
    host        [cudaLaunchKernel>1]   [cudaMemcpyAsync>2     ]
    gpu 7                      [nvjet_tst<1  ] [Memcpy HtoD (Pageable -> Device)<2 ]
    """,
    {
        "aten::mm": {
            "Input Dims": [[4, 8], [8, 2]],
            "Input type": ["float", "float"],
            "Sequence number": 3,
            "Fwd thread id": 0,
        },
        "autograd::engine::evaluate_function: MmBackward0": {
            "Sequence number": 3,
            "Fwd thread id": 1,
        },
    },
)
DOCUMENT["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]
DOCUMENT["distributedInfo"] = {"rank": 0, "world_size": 2}
TEXTS = [write(DOCUMENT).encode() for write in LAYOUTS.values()]
Report: TypeAlias = "Callable[[Summary], str]"
REPORTS: tuple[Report, ...] = (
    lambda summary: summary_text.render([summary], width=80, color=False),
    lambda summary: summary_text.render([summary, summary], width=40, color=True),
    lambda summary: summary_json.render([summary]),
    lambda summary: summary_csv.render([summary]),
    lambda summary: summary_markdown.render([summary]),
)

pytestmark = pytest.mark.slow
reports = st.sampled_from(REPORTS)
examples = settings(
    max_examples=25,
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.too_slow],
)


def use(content: bytes, *reports: Report) -> None:
    """Do with a file what a user does; only a refusal may come out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        try:
            trace = traceq.load(path, cache=False)
        except TraceqError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017 - it need not be refused
            return
        if reports:
            summary = summarise(trace)
            for report in reports:
                report(summary)


@examples
@given(st.sampled_from(TEXTS), st.data())
def test_a_file_cut_anywhere_is_read_or_refused_in_one_sentence(
    text: bytes, data: st.DataObject
) -> None:
    use(text[: data.draw(st.integers(0, len(text)))])


@examples
@given(st.sampled_from(TEXTS), st.data())
def test_bytes_flipped_anywhere_are_read_or_refused_in_one_sentence(
    text: bytes, data: st.DataObject
) -> None:
    flipped = bytearray(text)
    for _ in range(data.draw(st.integers(1, 8))):
        flipped[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.integers(0, 255)
        )
    use(bytes(flipped))


@examples
@given(st.sampled_from(TEXTS), st.binary(max_size=40), st.data())
def test_junk_inserted_anywhere_is_read_or_refused_in_one_sentence(
    text: bytes, junk: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text)))
    use(text[:at] + junk + text[at:])


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=6,
)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "s")
ARGUMENTS = (
    "correlation",
    "stream",
    "device",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
    "Sequence number",
    "Fwd thread id",
    "bytes",
    "Bytes",
    "Total Allocated",
    "grid",
)
CATEGORIES = (
    "cpu_op",
    "kernel",
    "cuda_runtime",
    "user_annotation",
    "python_function",
    "cpu_instant_event",
    "gpu_memcpy",
    "overhead",
    "Trace",
)


@examples
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(KEYS), VALUES), max_size=6),
    reports,
)
def test_values_of_wrong_types_crash_nothing(
    changes: list[tuple[int, str, Any]], report: Report
) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    for at, key, value in changes:
        document["traceEvents"][at][key] = value
    use(json.dumps(document).encode(errors="replace"), report)


@examples
@given(
    st.lists(
        st.tuples(st.sampled_from(CATEGORIES), st.sampled_from(ARGUMENTS), VALUES),
        max_size=6,
    ),
    reports,
)
def test_arguments_of_wrong_types_crash_nothing(
    changes: list[tuple[str, str, Any]], report: Report
) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    for category, key, value in changes:
        event = timed("[memory]", 4, 3, cat=category)
        document["traceEvents"].append(event | {"args": {key: value}})
    use(json.dumps(document).encode(errors="replace"), report)


@examples
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "deviceProperties",
                "distributedInfo",
                "baseTimeNanoseconds",
                "cuda_runtime_version",
                "schemaVersion",
            ]
        ),
        VALUES,
    ),
    reports,
)
def test_headers_of_wrong_types_crash_nothing(
    header: dict[str, Any], report: Report
) -> None:
    document = header | {"traceEvents": DOCUMENT["traceEvents"]}
    use(json.dumps(document).encode(errors="replace"), report)


@examples
@given(
    st.lists(st.sampled_from(DOCUMENT["traceEvents"]), min_size=1, max_size=40), reports
)
def test_events_doubled_and_missing_crash_nothing(
    events: list[dict[str, Any]], report: Report
) -> None:
    use(json.dumps({"traceEvents": events}).encode(), report)


@examples
@given(
    st.lists(
        st.tuples(
            st.sampled_from(CATEGORIES),
            st.integers(0, 30),
            st.integers(0, 30),
            st.integers(1, 2),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=40,
    ),
    reports,
)
def test_spans_that_overlap_in_any_way_crash_nothing(
    spans: list[tuple[str, int, int, int, int]], report: Report
) -> None:
    events = [
        timed(
            f"ProfilerStep#{tie}",
            ts,
            dur,
            cat=category,
            tid=tid,
            args={
                "correlation": tie,
                "device": 0,
                "stream": tid,
                "Sequence number": tie,
                "Fwd thread id": tie % 2,
            },
        )
        for category, ts, dur, tid, tie in spans
    ]
    use(json.dumps(events).encode(), report)


def test_deep_nesting_is_refused_or_lost_not_followed() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    plain = json.dumps(timed("a", 1, 1, args={"x": 1}))
    strange = plain.replace('"x": 1', f'"x": {deep}')
    for text in (
        deep,
        f"[{strange}, {plain}]",
        f'{{"a": {deep}, "traceEvents": [{plain}]}}',
    ):
        use(text.encode())


def test_a_very_deep_stack_of_ops_crashes_nothing() -> None:
    depth = 3_000
    events = [timed("f", at, 2 * depth - 2 * at) for at in range(depth)]
    after = timed("g", 3 * depth, 1)
    use(json.dumps([*events, after]).encode(), *REPORTS)


def test_long_runs_of_blanks_are_no_trap() -> None:
    use(b'{"traceEvents": [' + b" " * 3_000_000 + b"}")
    use(b'{"traceEvents": [{"ph": "X"}' + b"\n" * 3_000_000 + b"]")


@pytest.fixture(scope="module")
def seeds() -> Seeds:
    return read_seeds()


@pytest.mark.parametrize("seed", range(8))
def test_mutated_snapshots_are_read_or_refused_in_one_sentence(
    seeds: Seeds, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)  # noqa: S311 - the same again each time
    file = tmp_path / "snapshot.pickle"
    read = 0
    for _ in range(30):
        file.write_bytes(pickle_of(rng, rng.choice(seeds.snapshots)))
        try:
            read += bool(read_snapshot(file).facts)
        except TraceqError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017 - it need not be refused
    # Mutations that leave nothing to read would test nothing.
    assert read


@pytest.mark.parametrize("seed", range(4))
def test_mutated_configurations_are_read_or_refused(
    seeds: Seeds, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)  # noqa: S311 - the same again each time
    file = tmp_path / "traceq.toml"
    read = 0
    for _ in range(100):
        file.write_bytes(text_of(rng, rng.choice(seeds.configs)))
        try:
            read += bool(read_config(file).select)
        except TraceqError as refusal:
            assert str(refusal)  # noqa: PT017 - it need not be refused
    assert read > 10
