"""Compiled scanner, compared with the reference event by event."""

from __future__ import annotations

import json
import random
import shutil
import sysconfig
from codecs import BOM_UTF8
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import polars as pl
import pytest
from fuzz_seeds import read_seeds
from layouts import LAYOUTS, timed
from mutate import text_of

from traceq import native
from traceq.errors import TraceqError
from traceq.formats import scan
from traceq.formats.chrome import read
from traceq.formats.chunks import Cut, chunks
from traceq.formats.events import joined
from traceq.formats.source import Source

if TYPE_CHECKING:
    from layouts import Document

    from traceq.formats.events import Tally

Read: TypeAlias = (
    "tuple[dict[str, list[str]], Tally, frozenset[str], int, tuple[str, ...]]"
)

compiled = pytest.mark.skipif(not native.available(), reason="the scanner is not built")
OP = timed("aten::mm", 5.25, 3, args={"Sequence number": 4, "Input Dims": [[2, 3]]})
CALL = timed("cudaLaunchKernel", 7, 1, cat="cuda_runtime", args={"correlation": 3})
REGION = timed("forward", 1, 20, cat="user_annotation", args={"External id": 1})
KERNEL = timed("gemm", 9, 2, cat="kernel", args={"stream": 7, "grid": [1, 2, 3]})


def test_it_is_built_where_there_is_a_compiler() -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not (shutil.which("cc") or shutil.which("gcc")) or not header.exists():
        pytest.skip("there is no compiler here")

    assert native.available()


def test_one_that_was_built_of_another_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "INTERFACE", -1)

    assert not native.available()


@cache
def traces() -> list[Document]:
    """Return the traces that are broken, small ones of many kinds."""
    return read_seeds().traces


def seen(path: Path) -> Read | str:
    """Return all that is read from a file, in no order; or why it is refused."""
    try:
        raw = read(path)
    except TraceqError as refusal:
        return str(refusal)
    tables = {
        name: sorted(
            map(repr, table.with_columns(pl.col(pl.Categorical).cast(pl.String)).rows())
        )
        for name, table in raw.tables.items()
    }
    return tables, raw.tally, raw.categories, raw.start, raw.damage


def seen_both_ways(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Read | str, Read | str]:
    """Return what is read from a file with the scanner, and without."""
    monkeypatch.delenv("TRACEQ_PURE", raising=False)
    scanned = seen(path)
    monkeypatch.setenv("TRACEQ_PURE", "1")
    return scanned, seen(path)


@compiled
def test_tables_of_recordings_are_those_of_the_reference(
    fixture_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned, reference = seen_both_ways(fixture_trace, monkeypatch)

    assert scanned == reference


@compiled
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "sorted-keys"])
def test_what_pytorch_writes_is_taken_however_it_is_laid_out(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(
        LAYOUTS[name]({"traceEvents": [OP, KERNEL, CALL, REGION]}).encode()
    )
    cut = Cut()
    (chunk,) = chunks(path, Source(path).blocks(), cut, size=1 << 20)

    decoded, tally = scan.Scan(cut.layout).decode(chunk, whole=True)

    assert tally.events == len((OP, KERNEL, CALL, REGION))
    assert decoded.is_empty()


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("length", [50, 101, 1000])
def test_events_are_whole_in_pieces_wherever_blocks_end(
    length: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceq.formats.chunks._SAMPLE", 1000)
    events = [timed(f"op{number}", number, 1) for number in range(50)]
    text = LAYOUTS[name]({"traceEvents": events}).encode()
    blocks = (text[at : at + length] for at in range(0, len(text), length))
    cut = Cut()

    cuts = [*chunks(Path("trace.json"), blocks, cut, size=500)]

    separator = cut.layout.separator
    pieces = [part for chunk in cuts for part in chunk]
    texts = joined(pieces, separator).split(separator)
    assert len(cuts) > 1
    around = cut.head + cut.opening, cut.ending
    assert separator.join(texts).join(around) == text.removeprefix(BOM_UTF8)
    assert [json.loads(b'{"' + item + b"}") for item in texts] == events


STRANGE = {
    "a number in quotes": OP | {"args": {"Sequence number": "4"}},
    "a number with decimals": KERNEL | {"args": {"stream": 7.5}},
    "a number beyond 64 bits": KERNEL | {"args": {"correlation": 1 << 70}},
    "no number": KERNEL | {"args": {"stream": None}},
    "objects among the arguments": OP | {"args": {"list": [{"a": 1}, {"b": 2}]}},
    "a key that stands deeper": KERNEL | {"args": {"of": {"stream": 3}}},
    "escaped quotes": CALL | {"args": {"kernel": 'a "b" \\ c', "correlation": 3}},
    "a list of lists of texts": OP | {"args": {"Concrete Inputs": [["a]", "{"], "}"]}},
    "inputs with a key behind them": OP
    | {"args": {"Input Dims": [[1]], "Call stack": "a.py(3): f", "Ev Idx": 3}},
    "a collective": KERNEL
    | {"args": {"Collective name": "allreduce", "Group size": 2, "dtype": "Float"}},
    "a time with an exponent": OP | {"ts": 1e22},
    "a time with four decimals": OP | {"dur": 0.1234},
    "a time before zero": OP | {"ts": -3},
    "no duration": {key: value for key, value in OP.items() if key != "dur"},
    "no time": {key: value for key, value in OP.items() if key != "ts"},
    "no arguments": {key: value for key, value in OP.items() if key != "args"},
    "times behind the arguments": dict(sorted(OP.items())),
    "a phase among the arguments": OP | {"args": {"ph": "X", "Input Dims": [[1]]}},
    "an unknown category": OP | {"cat": "overhead"},
    "a name that is not ASCII": OP | {"name": "aten::ü"},
}


@compiled
@pytest.mark.parametrize("event", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("layout", ["kineto-2.11", "one-line"])
def test_an_event_that_is_written_otherwise_is_read_as_by_the_reference(
    event: dict[str, object],
    layout: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS[layout]({"traceEvents": [OP, event, KERNEL]}))

    scanned, reference = seen_both_ways(path, monkeypatch)

    assert scanned == reference


@compiled
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"mm", b"m\xff"),
        (b'"kineto"', b'kineto"'),
        (b'"float"', b'"float'),
        (b'"args"', b'"dur": 5, "args"'),
        (b'"ts"', b'"dur": 5, "ts"'),
        (b'"stream": 7', b'"stream": 7, "stream": 8'),
        (b'"stream": 7', b'"stream": "x", "stream": 8'),
        (b'"stream": 7', b'"stream": null, "stream": 7'),
        (b'"stream": 7', b'"a\\"stream": 5, "stream": 7'),
        (b'"grid": [', b'"grid": "none", "grid": ['),
        (b'"Input Dims": [', b'"Input Dims": [[9]], "Input Dims": ['),
        (b'"Input type": [', b'"Input type": 5, "Ev Idx": 1, "Input type": ['),
        (b'"Input type": [', b'"Call stack": 5, "Call stack": "a", "Input type": ['),
        (b'"grid": [', b'"grid": [[[['),
        (b'"ph": "X"', b'"ph":\t"X"'),
        (b'"stream": 7', b'"stream" : 7'),
    ],
)
def test_text_that_is_broken_is_read_as_by_the_reference(
    old: bytes, new: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    op = OP | {"args": {"Input type": ["float", "kineto"], "Input Dims": [[1], [2]]}}
    text = LAYOUTS["kineto-2.11"]({"traceEvents": [OP, op, KERNEL, KERNEL, OP]})
    path.write_bytes(text.encode().replace(old, new, 1))

    scanned, reference = seen_both_ways(path, monkeypatch)

    assert scanned == reference


@pytest.mark.slow
@compiled
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_broken_in_a_file_is_read_as_by_the_reference(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)  # noqa: S311 - nothing to keep secret
    document = rng.choice(traces())
    content = rng.choice(list(LAYOUTS.values()))(document).encode()
    for _ in range(rng.choice((1, 2, 5))):
        content = text_of(rng, content)
    path = tmp_path / "trace.json"
    path.write_bytes(content)

    scanned, reference = seen_both_ways(path, monkeypatch)

    assert scanned == reference
