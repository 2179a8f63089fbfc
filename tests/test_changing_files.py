"""A file that changes while it is read: all of one version, or one sentence."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from functools import cache
from typing import TYPE_CHECKING

import pytest
from command import traceq
from layouts import timed

import traceq.formats.source as reading
from traceq.cache.store import finish
from traceq.errors import InputError
from traceq.formats import compression, pickles
from traceq.formats.snapshot import read_snapshot
from traceq.formats.unmodified_file import unchanged
from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.linter.pack import load_rules
from traceq.shrink.shrink import ShrinkInput, shrink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

CHANGED = "changed while it was read: wait until it is written"


@cache
def trace(name: str) -> bytes:
    """Return a trace of several blocks."""
    events = [
        timed(name, 10 * at, 5, cat="cpu_op", args={"Input Dims": [[at] * 8]})
        for at in range(3_000)
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def written() -> bytes:
    """Return what a file holds at first."""
    return trace("aten::mm")


def other() -> bytes:
    """Return what is written over it, of the same length."""
    return trace("aten::xx")


def grow(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b" " * 100)


def cut(file: Path) -> None:
    os.truncate(file, len(written()) // 2)


def overwrite(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(other())


def replace(file: Path) -> None:
    new = file.with_name("new.json")
    new.write_bytes(other())
    new.rename(file)


def once(change: Callable[[Path], None], file: Path) -> Callable[[int, int], None]:
    """Return a progress that changes the file when the first of it was read."""
    left = [change]

    def progress(_done: int, _total: int) -> None:
        if left:
            left.pop()(file)

    return progress


@pytest.fixture
def big(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "BLOCK", 1 << 16)
    file = tmp_path / "trace.json"
    file.write_bytes(written())
    # As if it had been written long ago, so that it may be cached.
    os.utime(file, (1_700_000_000, 1_700_000_000))
    assert len(written()) == len(other()) > 4 * reading.BLOCK
    return file


@pytest.mark.parametrize("change", [grow, cut, overwrite])
def test_a_trace_that_changes_while_it_is_read_is_refused(
    big: Path, change: Callable[[Path], None]
) -> None:
    with pytest.raises(InputError, match=CHANGED):
        load(big, progress=once(change, big))
    finish()

    assert not list((big.parent / "cache").rglob("facts.json"))


@pytest.mark.real
def test_a_trace_that_is_replaced_while_it_is_read_is_whole_and_not_cached(
    big: Path,
) -> None:
    names = [load(big, progress=once(replace, big)).ops["name"].unique().to_list()]
    finish()
    names += [load(big).ops["name"].unique().to_list() for _ in range(2)]

    assert names == [["aten::mm"], ["aten::xx"], ["aten::xx"]]


def test_a_packed_trace_that_is_cut_while_it_is_read_is_refused(big: Path) -> None:
    big.write_bytes(gzip.compress(written(), compresslevel=0))

    with pytest.raises(InputError, match=CHANGED):
        load(big, cache=False, progress=once(cut, big))


def test_a_trace_that_changes_between_two_commands_is_read_again(big: Path) -> None:
    load(big)
    finish()
    overwrite(big)

    assert load(big).ops["name"].unique().to_list() == ["aten::xx"]


def test_a_snapshot_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "snapshot.pickle"
    content = {"segments": [], "device_traces": [[]], "more": list(range(100_000))}
    file.write_bytes(pickle.dumps(content))
    blocks = compression.blocks

    def growing(stream: BufferedReader, most: int) -> Iterator[bytes]:
        for block in blocks(stream, most):
            grow(file)
            yield block

    monkeypatch.setattr(pickles, "blocks", growing)
    with pytest.raises(InputError, match=CHANGED):
        read_snapshot(file)


@pytest.mark.real
def test_shrink_reads_one_version(big: Path) -> None:
    with pytest.raises(InputError, match=CHANGED):
        shrink(
            ShrinkInput(big),
            load_rules(),
            Config(),
            limit=1,
            progress=once(replace, big),
        )


def test_a_pipe_may_change(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with unchanged(pipe):
        os.utime(pipe)


def test_a_file_that_changes_is_one_line_of_a_command(
    big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = reading.Source._refuse_strangers  # noqa: SLF001 - called once a file

    def changed(source: reading.Source, block: bytes) -> None:
        refused(source, block)
        grow(big)

    monkeypatch.setattr(reading.Source, "_refuse_strangers", changed)
    done = traceq("lint", big, "--no-cache")

    assert (done.status, done.out) == (2, "")
    assert done.err == (
        f"traceq: {big} changed while it was read: wait until it is written, then read"
        " it again\n"
    )
