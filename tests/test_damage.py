"""Broken files are read as far as they go, and called incomplete."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest
from layouts import LAYOUTS, timed

import traceq
from traceq.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [
    timed(f"op{at}", 10 * at, 5, args={"Sequence number": at, "Ev Idx": at})
    for at in range(20)
]
LAID_OUT = ("kineto-2.11", "kineto-2.12", "python-2.13", "one-line")


def load_bytes(folder: Path, content: bytes, name: str = "trace.json") -> traceq.Trace:
    path = folder / name
    path.write_bytes(content)
    return traceq.load(path, cache=False)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAID_OUT)
def test_a_file_cut_anywhere_keeps_exactly_its_whole_events(
    layout: str, tmp_path: Path
) -> None:
    text = LAYOUTS[layout]({"traceEvents": EVENTS})
    ends = [match.start() for match in re.finditer('"Ev Idx":', text)]
    for cut in range(ends[1], len(text) - 30, 223):
        # An event is whole when its own last brace is there.
        whole = 0
        for start in ends:
            close = text.find("}", text.find("}", start) + 1)
            whole += close < cut

        trace = load_bytes(tmp_path, text[:cut].encode())

        assert trace.ops.height == whole, cut
        assert trace.facts.incomplete
        assert trace.ops["sequence"].to_list() == list(range(whole))


def test_it_says_how_much_was_lost(tmp_path: Path) -> None:
    text = LAYOUTS["kineto-2.11"]({"traceEvents": EVENTS})
    cut = text.index('"name": "op7"')
    lost = len(text[text.rindex('"ph"', 0, cut) + 1 : cut].encode())

    trace = load_bytes(tmp_path, text[:cut].encode())

    assert trace.facts.damage == (
        "the file ends before the trace does; what came before was read",
        f"1 event of 8 could not be read ({lost} bytes)",
    )


def test_a_file_that_lacks_only_its_end_has_all_events(tmp_path: Path) -> None:
    text = LAYOUTS["kineto-2.11"]({"traceEvents": EVENTS})
    cut = text.index('"traceName"')

    trace = load_bytes(tmp_path, text[:cut].encode(), "trace.json.tmp")

    assert trace.ops.height == 20
    assert trace.facts.damage == (
        "the file ends before the trace does; what came before was read",
    )


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_gzip_stream_that_is_cut_off_is_read_up_to_there(
    share: float, tmp_path: Path
) -> None:
    packed = gzip.compress(
        LAYOUTS["one-line"]({"traceEvents": EVENTS * 50}).encode(), 1
    )

    trace = load_bytes(tmp_path, packed[: int(len(packed) * share)])

    assert 0 < trace.ops.height < 1000
    assert (
        trace.facts.damage[0] == "the gzip stream is cut off; what came before was read"
    )


def test_a_gzip_stream_that_is_damaged_is_read_up_to_there(tmp_path: Path) -> None:
    packed = bytearray(
        gzip.compress(LAYOUTS["one-line"]({"traceEvents": EVENTS * 50}).encode(), 1)
    )
    packed[len(packed) * 3 // 4] ^= 0xFF

    trace = load_bytes(tmp_path, bytes(packed))

    assert trace.ops.height > 0
    assert (
        trace.facts.damage[0] == "the gzip stream is damaged; what came before was read"
    )


def test_a_gzip_stream_of_which_nothing_can_be_unpacked_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        InputError, match="cannot be unpacked: the gzip stream is damaged"
    ):
        load_bytes(tmp_path, b"\x1f\x8b\x08\x00 not really")


@pytest.mark.parametrize("layout", LAID_OUT[:2])
def test_quotes_in_a_name_may_lack_their_escapes(layout: str, tmp_path: Path) -> None:
    name = 'say "hello", "you"'
    named = [{**EVENTS[0], "name": "NAME"}, *EVENTS[1:]]
    text = LAYOUTS[layout]({"traceEvents": named}).replace("NAME", name)

    trace = load_bytes(tmp_path, text.encode())

    assert trace.ops["name"][0] == name
    assert trace.ops.height == 20
    assert not trace.facts.incomplete


def test_a_broken_event_costs_only_itself(tmp_path: Path) -> None:
    text = LAYOUTS["kineto-2.11"]({"traceEvents": EVENTS}).replace(
        '"ts": 50', '"ts": 5x0'
    )

    trace = load_bytes(tmp_path, text.encode())

    assert trace.ops.height == 19
    assert trace.facts.damage[0].startswith("1 event of 20 could not be read")


def test_bytes_that_are_no_utf8_do_not_spoil_a_trace(tmp_path: Path) -> None:
    text = LAYOUTS["kineto-2.11"]({"traceEvents": EVENTS}).encode()

    trace = load_bytes(tmp_path, text.replace(b"op3", b"op\xff\xfe"))

    assert trace.ops.height == 20
    assert trace.ops["name"][3] == "op��"


@pytest.mark.real
def test_numbers_that_json_does_not_know_do_not_spoil_a_trace(tmp_path: Path) -> None:
    kernel = json.dumps(
        timed("k", 1, 1, cat="kernel", args={"blocks per SM": "%s", "correlation": 3})
    ).replace('"%s"', "%s")
    for number in ("NaN", "Infinity", "inf", '"inf"', "-nan"):
        trace = load_bytes(tmp_path, f"[{kernel % number}, {kernel % '2.5'}]".encode())
        assert trace.kernels["correlation"].to_list() == [3, 3]
        assert trace.kernels["blocks_per_sm"].to_list() == [None, 2.5]


def test_a_header_that_users_broke_does_not_spoil_the_events(tmp_path: Path) -> None:
    text = (
        '{"schemaVersion": 1, "my note": unquoted text, "traceEvents": '
        + json.dumps(EVENTS)
        + "}"
    )

    trace = load_bytes(tmp_path, text.encode())

    assert trace.ops.height == 20
    assert trace.facts.damage == ("what the file says about itself could not be read",)


REFUSED = {
    "empty": (b"", "is empty: there is no trace in it"),
    "text": (b"hello", "is not a trace: a trace is JSON and begins with '{' or '['"),
    "blank": (b"  \n ", "is not a trace: a trace is JSON and begins with '{' or '['"),
    "pickle": (
        b"\x80\x04\x95",
        "is a pickle, such as a CUDA memory snapshot, not a trace",
    ),
    "gzipped pickle": (gzip.compress(b"\x80\x04\x95abc"), "is a pickle"),
    "log of torch.compile": (
        b'V1119 10:00:00.123456 77 torch/_logging/structured.py:28] {"str": ["a", 1]}',
        "is a log of torch.compile (TORCH_TRACE), not a trace: traceq lint reads it",
    ),
    "zip": (b"PK\x03\x04rest", "is a damaged archive"),
    "zstd": (b"\x28\xb5\x2f\xfdrest", "cannot be unpacked: the zstd stream is"),
    "utf-16": (
        '{"traceEvents": []}'.encode("utf-16"),
        "is UTF-16 text: save it as UTF-8",
    ),
    "execution trace": (
        b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}',
        "is an execution trace (ExecutionTraceObserver), which has no timeline",
    ),
    "other json": (
        b'{"a": 1}',
        "is not a trace: give the file that PyTorch's profiler wrote",
    ),
    "cut before the events": (
        b'{"schemaVersion": 1, "devicePro',
        "it is not whole JSON and has no events",
    ),
    "no events": (b'{"traceEvents": []}', "it has no event that can be read"),
    "no events but a footer": (
        b'{"traceEvents": [], "deviceProperties": [{"id": 0}]}',
        "it has no event that can be read",
    ),
    "empty list": (b"[]", "it has no event that can be read"),
    "list of numbers": (b"[1, 2, 3]", "it has no event that can be read"),
    "list of texts": (b'["a", "b"]', "it has no event that can be read"),
    "another tool's trace": (
        json.dumps([timed("x", 1, 2, cat="render")]).encode(),
        "is a Chrome trace, but not one of PyTorch's profiler",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_trace_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    content, sentence = REFUSED[kind]

    with pytest.raises(InputError) as refusal:
        load_bytes(tmp_path, content)

    message = str(refusal.value)
    assert sentence in message
    assert str(tmp_path / "trace.json") in message
    assert "\n" not in message


def test_a_missing_file_a_directory_and_an_unreadable_file_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match="does not exist: check the name"):
        traceq.load(tmp_path / "nowhere.json")
    with pytest.raises(
        InputError, match="is a directory, but not a run folder of traceq collect"
    ):
        traceq.load(tmp_path)


@pytest.mark.real
def test_text_without_any_event_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("traceq.formats.chunks._EVENT_LIMIT", 1 << 20)
    bomb = gzip.compress(b'{"traceEvents": [{"' + b"a" * (64 << 20))

    with pytest.raises(InputError, match="no event ends within 1 MiB of text"):
        load_bytes(tmp_path, bomb)
