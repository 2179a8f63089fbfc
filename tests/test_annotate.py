"""Traces with their findings as tracks, for Perfetto."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from layouts import LAYOUTS, timed
from linting import linted, outcome
from recordings import ROOT, loaded

from traceq.analysis.base.gpu_idle import idle_in
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.idle_causes import causes_in, causes_of
from traceq.annotate import messages
from traceq.annotate.counters import counters
from traceq.annotate.trace import write_annotated
from traceq.errors import InputError, UsageError
from traceq.inputs.load_trace import load
from traceq.linter.view import View
from traceq.model.recording import Recording
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.annotate.trace import Annotated
    from traceq.model.lint_report import RecordingReport

FIXTURES = ROOT / "fixtures"
COPIES = FIXTURES / "copies" / "trace.json.gz"
ATTENTION = FIXTURES / "attn_mask_fmha" / "trace.json.gz"
_DRAWN = """
    host   [ProfilerStep#1                              ] [ProfilerStep#2           ]
    host    [aten::mm           ] [aten::item          ]   [aten::mm           ]
    host     [cudaLaunchKernel>1]  [cudaStreamSynchronize]  [cudaLaunchKernel>2]
    gpu 7                [gemm<1                   ]              [gemm<2      ]
"""


def _document(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - keys of a trace
    """Return a drawn trace with a sync, its arrows and a name of its process."""
    document = draw(_DRAWN) | changes
    events = document["traceEvents"]
    ends = [event for event in events if event.get("args", {}).get("correlation")]
    for event in ends:
        kernel = event["cat"] == "kernel"
        arrow = {key: event[key] for key in ("pid", "tid", "ts")}
        arrow |= {"ph": "f" if kernel else "s", "cat": "ac2g", "name": "ac2g"}
        events.append(arrow | {"id": event["args"]["correlation"], "bp": "e"})
    name = {"ph": "M", "name": "process_name", "pid": 1000, "tid": 0, "ts": 0}
    events.append(name | {"args": {"name": "python"}})
    return document


@cache
def _outcome() -> RecordingReport:
    """Return what lint says of the drawn trace."""
    return outcome(Recording("drawn", load_drawn(_DRAWN)))


def _drawn(source: Path, file: Path, steps: str | None = None) -> Annotated:
    """Annotate a file of the drawn trace."""
    trace = load(source, cache=False)
    return write_annotated(View(trace), _outcome(), source, file, steps=steps)


def _annotated(source: Path, file: Path, steps: str | None = None) -> Annotated:
    return write_annotated(
        View(loaded(source)), linted(source), source, file, steps=steps
    )


def _text(file: Path) -> bytes:
    content = file.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _events(file: Path) -> list[dict[str, Any]]:
    document = json.loads(_text(file).removeprefix(b"\xef\xbb\xbf"))
    return document["traceEvents"] if isinstance(document, dict) else document


def _added(before: Path, after: Path) -> list[dict[str, Any]]:
    return _events(after)[len(_events(before)) :]


def _slices(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def _ns(microseconds: float) -> int:
    return round(1000 * microseconds)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_byte_of_the_file_stays(layout: str, tmp_path: Path) -> None:
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    source.write_bytes(LAYOUTS[layout](_document()).encode())
    _drawn(source, file)
    before, after = source.read_bytes(), file.read_bytes()
    same = len(after) - len(before)
    first = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        len(before),
    )
    assert after[:first] == before[:first]
    assert after[first + same :] == before[first:]
    assert {event["ph"] for event in _added(source, file)} >= {"M", "X", "C"}
    assert _events(file)[: len(_events(source))] == _events(source)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_the_name_says_whether_it_is_compressed(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"annotated{ending}"
    _annotated(COPIES, file)
    assert (file.read_bytes()[:2] == b"\x1f\x8b") == ending.endswith(".gz")
    assert _text(file).startswith(_text(COPIES)[:100_000])


def test_slices_lie_exactly_on_the_kernels_of_the_finding(tmp_path: Path) -> None:
    file = tmp_path / "annotated.json"
    _annotated(ATTENTION, file)
    named = {
        event["tid"]
        for event in _added(ATTENTION, file)
        if event["ph"] == "M"
        and event["args"].get("name") == "ATT001 masked-attention-fallback"
    }
    kernels = {
        (event["ts"], event["dur"])
        for event in _events(ATTENTION)
        if event.get("cat") == "kernel"
    }
    slices = [item for item in _slices(_added(ATTENTION, file)) if item["tid"] in named]
    assert len(slices) == 48
    assert {(item["ts"], item["dur"]) for item in slices} <= kernels


def test_a_slice_says_what_is_wrong_what_it_costs_and_what_to_do(
    tmp_path: Path,
) -> None:
    file = tmp_path / "annotated.json"
    _annotated(ATTENTION, file)
    finding = linted(ATTENTION).findings[0]
    said = [item["args"] for item in _slices(_added(ATTENTION, file)) if item["args"]]
    first = next(args for args in said if "finding" in args)
    assert first["finding"] == f"ATT001: {finding.message}"
    assert first["fix"] == finding.advice
    assert "ms/step" in first["cost"]
    assert "masked (dev_cases.py:48)" in first["place"]


@pytest.mark.parametrize("name", ["copies", "python_in_step", "recompile"])
def test_every_finding_has_a_slice_and_slices_of_a_track_nest(
    name: str, tmp_path: Path
) -> None:
    """Perfetto drops slices that overlap others of their track and do not nest."""
    source, file = FIXTURES / name / "trace.json.gz", tmp_path / "annotated.json"
    _annotated(source, file)
    slices = _slices(_added(source, file))
    findings = {item["args"]["finding"] for item in slices if "finding" in item["args"]}
    assert findings == {
        f"{finding.code}: {finding.message}" for finding in linted(source).findings
    }
    tracks = defaultdict(list)
    for entry in slices:
        start = _ns(entry["ts"])
        tracks[entry["tid"]].append((start, -start - _ns(entry["dur"])))
    for track in tracks.values():
        open_until: list[int] = []
        for start, end in sorted(track):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)


def test_arrows_point_at_kernels_and_are_no_others(tmp_path: Path) -> None:
    file = tmp_path / "annotated.json"
    _annotated(ATTENTION, file)
    kernels = {
        (event["pid"], event["tid"], event["ts"])
        for event in _events(ATTENTION)
        if event.get("cat") in ("kernel", "gpu_memset")
    }
    added = _added(ATTENTION, file)
    ends = [entry for entry in added if entry["ph"] == "f"]
    assert len(ends) > 20
    assert {(end["pid"], end["tid"], end["ts"]) for end in ends} <= kernels
    starts = {entry["id"] for entry in added if entry["ph"] == "s"}
    theirs = {event["id"] for event in _events(ATTENTION) if event["ph"] in "sf"}
    assert starts == {end["id"] for end in ends}
    assert not starts & theirs


def test_an_annotated_trace_has_the_same_findings(tmp_path: Path) -> None:
    """What was added is no work of the program."""
    file = tmp_path / "annotated.json.gz"
    _annotated(COPIES, file)
    before, after = linted(COPIES), linted(file)
    assert after.facts is not None
    assert not after.facts.damage
    assert after.findings == before.findings
    assert after.step_ns == before.step_ns


def test_a_trace_can_be_annotated_again_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    once, twice = tmp_path / "once.json.gz", tmp_path / "twice.json.gz"
    _annotated(COPIES, once)
    _annotated(once, twice)
    ours = {item["pid"] for item in _slices(_added(once, twice))}
    assert not ours & {event["pid"] for event in _events(once)}


def test_times_of_any_size_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    """Before torch 2.4 the file counts from 1970."""
    document = _document()
    base = 1_700_000_000_000_000
    for event in document["traceEvents"]:
        event["ts"] = f"@{base + event['ts']}.123@"
    written = json.dumps(document).replace('"@', "").replace('@"', "")
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    source.write_text(written)
    _drawn(source, file)
    step = _text(file).decode().split('"name":"step 1"')[0].rsplit('"ts":', 1)[1]
    assert step.startswith(f"{base}")
    assert step.split(",")[0].endswith(".123")


@pytest.mark.parametrize("cut", [0.7, 0.999])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("steps", [None, "1"])
def test_a_file_that_is_cut_off_is_refused_and_nothing_is_left(
    cut: float, ending: str, steps: str | None, tmp_path: Path
) -> None:
    content = LAYOUTS["kineto-2.11"](_document()).encode()
    content = content if ending == ".json" else gzip.compress(content)
    source = tmp_path / f"trace{ending}"
    source.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(InputError, match=r"is cut off, so that nothing can be added"):
        _drawn(source, tmp_path / "annotated.json", steps)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_has_the_events_of_its_steps_and_the_names(
    layout: str, tmp_path: Path
) -> None:
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    source.write_bytes(LAYOUTS[layout](_document()).encode())
    written = _drawn(source, file, "2-2")
    step = load(source, cache=False).steps.row(1, named=True)
    start, end = step["start"], step["end"]
    retained = _events(file)[: written.copied.events]
    expected = [
        event
        for event in _events(source)
        if event["ph"] == "M"
        or (_ns(event["ts"] + event.get("dur", 0)) >= start and _ns(event["ts"]) <= end)
    ]
    flows = [entry for entry in expected if entry["ph"] in "sf"]
    whole = [flow for flow in flows if sum(o["id"] == flow["id"] for o in flows) > 1]
    others = [entry for entry in expected if entry not in flows]
    assert [entry for entry in retained if entry["ph"] not in "sf"] == others
    assert [entry for entry in retained if entry["ph"] in "sf"] == whole
    assert len(whole) == 2


def test_a_cut_that_is_read_again_has_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "annotated.json.gz"
    written = _annotated(COPIES, file, "1")
    before, after = loaded(COPIES).steps, load(file, cache=False).steps
    assert written.steps == (before.filter(~before["warmup"])["step"][0],)
    assert after["step"].to_list() == list(written.steps)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("9-12", "no step of 9-12: it has 2 steps"),
        ("two", "neither a number of steps nor a range"),
        ("0", "neither a number of steps nor a range"),
    ],
)
def test_steps_that_are_not_there_are_refused(
    steps: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        _annotated(COPIES, tmp_path / "annotated.json", steps)


def test_arguments_with_objects_in_them_are_kept_whole(tmp_path: Path) -> None:
    """In a file of one line, these are separated as events are."""
    document = _document()
    odd = timed("aten::odd", 60, 5, args={"list": [{"a": 1}, {"b": 2}]})
    document["traceEvents"].insert(3, odd)
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    source.write_text(json.dumps(document))
    _drawn(source, file, "2-2")
    assert odd in _events(file)


_BROKEN = {
    "an escape that is none": b'"aten::\\x"',
    "a quote within a name": b'"aten::"odd""',
    "a byte that is no text": b'"aten::\xff"',
    "a line within a name": b'"aten::\n"',
    "no value": b"",
    "no number": b"NaN",
    "an open object": b'{"a": 1',
}


@pytest.mark.parametrize("broken", _BROKEN)
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("steps", [None, "1-2"])
def test_an_event_that_is_no_json_is_left_out(
    broken: str, ending: str, steps: str | None, tmp_path: Path
) -> None:
    document = _document()
    document["traceEvents"].insert(3, timed("REPLACED", 60, 5))
    source, file = tmp_path / f"trace{ending}", tmp_path / f"annotated{ending}"
    text = json.dumps(document, indent=1).encode()
    text = text.replace(b'"REPLACED"', _BROKEN[broken])
    source.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)

    written = _drawn(source, file, steps)

    events = _events(file)
    assert written.copied.lost == (broken != "a byte that is no text")
    assert [event for event in events if event.get("name") == "aten::mm"]
    output = messages.sentences(written, _outcome(), file)
    assert ("not valid JSON" in output) == bool(written.copied.lost)


def test_a_header_that_is_no_json_is_left_out(tmp_path: Path) -> None:
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    text = json.dumps(_document())
    source.write_text(text.replace("{", '{"odd": \\x, ', 1))

    written = _drawn(source, file)

    assert written.copied.header_lost
    assert _events(file)


def test_what_is_added_takes_at_most_a_fiftieth(tmp_path: Path) -> None:
    """Of a file of a megabyte or more; a smaller one has room for some hundreds."""
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    source.write_bytes(_text(COPIES))
    written = write_annotated(View(loaded(COPIES)), linted(COPIES), source, file)
    assert written.bytes_before > 1_000_000
    assert written.bytes_after <= 1.02 * written.bytes_before
    assert written.added.joined + written.added.left_out > 100
    assert not _annotated(ATTENTION, tmp_path / "all.json").added.left_out


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    document = _document()
    for event in document["traceEvents"]:
        if event["name"] == "aten::item":
            event["name"] = 'aten::item"},{"ph":"X\u2028\x00</script>'
    source, file = tmp_path / "trace.json", tmp_path / "annotated.json"
    source.write_text(json.dumps(document))
    _drawn(source, file)
    assert _events(file)[: len(_events(source))] == _events(source)


def test_a_window_without_length_has_no_counters() -> None:
    trace = load_drawn(_DRAWN)

    assert not list(counters(trace, start=5, end=5, most=10))


def test_the_command_says_what_it_wrote_and_how_to_look_at_it(tmp_path: Path) -> None:
    file = tmp_path / "annotated.json.gz"
    done = traceq("annotate", ATTENTION, "-o", file, "--no-cache")
    assert done.status == 0
    assert "its process traceq has 8 tracks, on 392 slices" in done.out
    assert f"traceq open --as-is {file} shows it in Perfetto" in done.out
    again = traceq("annotate", ATTENTION, "-o", file, "--no-cache")
    assert again.status == 2
    assert "exists already" in again.err


@pytest.mark.parametrize("level", [1, 6, 9])
def test_what_is_packed_already_is_not_packed_again(level: int, tmp_path: Path) -> None:
    """All but the last block stays as it is, whatever packed it."""
    source, file = tmp_path / "trace.json.gz", tmp_path / "annotated.json.gz"
    source.write_bytes(gzip.compress(_text(COPIES), level))
    write_annotated(View(loaded(COPIES)), linted(COPIES), source, file)
    before, after = source.read_bytes(), file.read_bytes()
    retained = len(before) // 2
    assert after[:retained] == before[:retained]
    assert _text(file).startswith(_text(COPIES)[:-200])
    assert _events(file)[: len(_events(COPIES))] == _events(COPIES)


def test_a_file_packed_in_parts_is_packed_again(tmp_path: Path) -> None:
    source, file = tmp_path / "trace.json.gz", tmp_path / "annotated.json.gz"
    text = _text(COPIES)
    source.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]))
    write_annotated(View(loaded(COPIES)), linted(COPIES), source, file)
    assert _events(file)[: len(_events(COPIES))] == _events(COPIES)


def test_an_idle_gap_is_named_after_what_the_host_does_most_in_it() -> None:
    """As the account of all idle time has it, asked for one gap alone."""
    trace = loaded(COPIES)
    gaps = idle_in(trace, steady_steps(trace).windows)
    longest = gaps.sort(gaps["end"] - gaps["start"]).tail(12).sort("start")
    alone = [causes_in(trace, longest[row])["cause"][0] for row in range(12)]
    assert causes_of(trace, longest).to_list() == alone
    assert len(set(alone)) > 1
