"""Inputs as people have them: compressed, in folders and archives, piped, together."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES, loaded

from traceq.errors import InputError
from traceq.formats import compression
from traceq.inputs import discovery
from traceq.inputs.load_trace import load
from traceq.model.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command import Answer

    from traceq.model.trace import Trace

TRACE = FIXTURE_TRACES["attn_mask_fmha"]
CONTENT = gzip.decompress(TRACE.read_bytes())
SNAPSHOT = CAPTURES.path("copies.snapshot.pickle.gz")
LOG = CAPTURES.path("copies.log")


def zstd() -> Any:  # noqa: ANN401 - a module that may not be there
    """Return the module for zstd of this Python, or skip."""
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    return pytest.importorskip("backports.zstd")


def same(trace: Trace) -> bool:
    """Return whether a trace has the tables of TRACE."""
    whole = loaded(TRACE)
    return all(getattr(trace, name).equals(getattr(whole, name)) for name in TABLES)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lambda content: lzma.compress(content, preset=0),
    "bzip2": bz2.compress,
    "zstd": lambda content: zstd().compress(content),
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_the_same_content_gives_the_same_tables_whatever_its_compression(
    name: str, tmp_path: Path
) -> None:
    # Told by its bytes: the name says nothing.
    file = tmp_path / "trace"
    file.write_bytes(COMPRESSIONS[name](CONTENT))

    assert same(load(file, cache=False))


@pytest.mark.parametrize("name", [*COMPRESSIONS][1:])
def test_streams_that_follow_each_other_are_one_file(name: str, tmp_path: Path) -> None:
    compress = COMPRESSIONS[name]
    half = len(CONTENT) // 2
    file = tmp_path / "trace.json"
    file.write_bytes(compress(CONTENT[:half]) + compress(CONTENT[half:]) + b"\0" * 16)

    assert same(load(file, cache=False))


@pytest.mark.parametrize("name", [*COMPRESSIONS][1:])
def test_a_stream_that_is_cut_off_is_read_as_far_as_it_goes(
    name: str, tmp_path: Path
) -> None:
    packed = COMPRESSIONS[name](CONTENT)
    file = tmp_path / "trace.json"
    file.write_bytes(packed[: len(packed) * 9 // 10])

    trace = load(file, cache=False)

    assert trace.facts.damage[0] == (
        f"the {name} stream is cut off; what came before was read"
    )
    assert 0 < trace.ops.height <= loaded(TRACE).ops.height


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMPRESSIONS][1:])
def test_no_more_than_a_block_comes_out_of_a_bomb_at_once(name: str) -> None:
    bomb = io.BufferedReader(io.BytesIO(COMPRESSIONS[name](b" " * (64 << 20))))

    sizes = {len(block) for block in compression.blocks(bomb, 1 << 16)}

    assert max(sizes) <= 1 << 16


def test_what_to_install_for_zstd_is_said_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfdrest")
    monkeypatch.setattr(compression, "_ZSTD_MODULES", ())

    answer = traceq("summary", file)

    assert answer.status == 2
    assert answer.err == (
        f"traceq: {file} cannot be unpacked: it is compressed with zstd: pip install"
        " backports.zstd\n"
    )


@pytest.mark.parametrize("name", ["xz", "bzip2", "zstd"])
def test_snapshots_and_logs_are_unpacked_as_traces_are(
    name: str, tmp_path: Path
) -> None:
    snapshot, log = tmp_path / "memory.pickle", tmp_path / "train.log"
    snapshot.write_bytes(COMPRESSIONS[name](gzip.decompress(SNAPSHOT.read_bytes())))
    log.write_bytes(COMPRESSIONS[name](LOG.read_bytes()))

    packed = traceq("lint", snapshot, log, "--format", "json")
    plain = traceq("lint", SNAPSHOT, LOG, "--format", "json")

    assert packed.status == plain.status
    assert findings(packed) == findings(plain) != []


def findings(answer: Answer) -> list[str]:
    report = json.loads(answer.out)
    return [
        finding["code"]
        for recording in report["recordings"]
        for finding in recording["findings"]
    ]


def zipped(file: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return file


def tarred(file: Path, contents: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]  # a mode
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file


ARCHIVES: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "zip": zipped,
    "tar": lambda file, contents: tarred(file, contents, "w"),
    "tar.gz": tarred,
    "tar.xz": lambda file, contents: tarred(file, contents, "w:xz"),
}


@pytest.mark.parametrize("ending", ARCHIVES)
def test_the_one_trace_in_an_archive_is_read(ending: str, tmp_path: Path) -> None:
    file = ARCHIVES[ending](
        tmp_path / f"run.{ending}",
        {
            "run/README.md": b"# Run",
            "run/settings.json": b'{"lr": 1}',
            "run/requirements.txt": b"torch",
            "run/trace.json.gz": TRACE.read_bytes(),
        },
    )

    trace = load(file, cache=False)

    assert same(trace)
    assert trace.facts.path == f"{file}: run/trace.json.gz"


@pytest.mark.real
@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
@pytest.mark.slow
def test_names_in_an_archive_are_no_names_of_files(ending: str, tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    names = ("../../trace.json", f"{tmp_path}/absolute.log")
    file = ARCHIVES[ending](
        inside / f"x.{ending}", {names[0]: CONTENT, names[1]: b"hello"}
    )

    assert traceq("lint", file, "--no-cache").status in (0, 1)
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "b", file.name}


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_of_an_archive_with_two_traces_it_is_said_what_is_in_it(
    ending: str, tmp_path: Path
) -> None:
    file = ARCHIVES[ending](tmp_path / "x", {"a.json": CONTENT, "b.json": CONTENT})

    answer = traceq("lint", file)

    assert answer.status == 2
    assert answer.err == (
        f"traceq: {file} has more in it than one trace, memory snapshot and log: unpack"
        " it and give one of a.json, b.json\n"
    )


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({"a.csv": b"1,2"}, "has no trace in it, but a.csv"),
        (
            {"r/run.json": b"{}", "r/a.json": CONTENT, "r/b.json": CONTENT},
            "has a run folder in it: unpack it and give the folder",
        ),
    ],
)
def test_an_archive_without_one_program_is_refused_in_a_sentence(
    contents: dict[str, bytes], sentence: str, tmp_path: Path
) -> None:
    file = tarred(tmp_path / "x.tar.gz", contents)

    with pytest.raises(InputError) as refusal:
        load(file)

    assert str(refusal.value) == f"{file} {sentence}"


def test_a_trace_a_snapshot_and_a_log_in_an_archive_are_one_recording(
    tmp_path: Path,
) -> None:
    file = zipped(
        tmp_path / "run.zip",
        {
            "trace.json.gz": TRACE.read_bytes(),
            "memory.pickle.gz": SNAPSHOT.read_bytes(),
            "train.log": LOG.read_bytes(),
        },
    )

    packed = traceq("lint", file, "--format", "json")
    plain = traceq("lint", TRACE, SNAPSHOT, LOG, "--format", "json")

    assert findings(packed) == findings(plain)
    assert len(json.loads(packed.out)["recordings"]) == 1


@pytest.mark.real
def test_archives_that_are_damaged_encrypted_or_oddly_packed_are_refused(
    tmp_path: Path,
) -> None:
    whole = tarred(tmp_path / "a.tar.gz", {"trace.json": CONTENT}).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    odd = tmp_path / "odd.zip"
    with zipfile.ZipFile(odd, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("trace.json", CONTENT)
    locked = zipped(tmp_path / "locked.zip", {"trace.json": CONTENT})
    content = bytearray(locked.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    locked.write_bytes(content)

    assert "is a damaged archive" in traceq("summary", cut).err
    assert "is packed with bzip2, which is not read" in traceq("summary", odd).err
    assert "is encrypted: unpack it" in traceq("summary", locked).err


def test_a_tar_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    file = tmp_path / "x.tar.gz"
    file.write_bytes(gzip.compress(header.tobuf() + b"9" * (16 << 20)))

    assert "a name in it is of absurd length" in traceq("summary", file).err


def test_an_archive_that_unpacks_to_more_than_there_is_room_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(discovery, "MOST_BYTES", 1 << 20)
    file = zipped(tmp_path / "x.zip", {"trace.json": CONTENT})

    assert "unpacks to more than" in traceq("summary", file).err


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
@pytest.mark.parametrize("name", ["trace.json", "other.bin"])
def test_an_archive_that_unpacks_to_far_more_than_a_trace_is_a_bomb(
    name: str, ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("traceq.formats.source.ALWAYS_UNPACKED", 1 << 20)
    bomb = b'[{"ph": "X"},' + b" " * (32 << 20)
    file = ARCHIVES[ending](tmp_path / "x", {name: bomb, "z.json": b"{}"})

    message = traceq("summary", file).err

    refused = "unpacks to far more than a trace would" in message
    assert refused or "has no trace in it" in message


@pytest.mark.real
def test_nothing_is_left_of_what_was_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room = tmp_path / "tmp"
    room.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    file = zipped(tmp_path / "x.zip", {"trace.json": CONTENT})

    assert traceq("summary", file).status == 0
    assert list(room.iterdir()) == []


@pytest.mark.slow
def test_a_folder_of_traces_is_as_many_recordings_in_order(tmp_path: Path) -> None:
    # As tensorboard_trace_handler names them.
    for stamp in ("10.9", "9.10", "9.9"):
        copy = tmp_path / f"host_{stamp}.pt.trace.json.gz"
        copy.write_bytes(TRACE.read_bytes())
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "settings.json").write_text("{}")

    answer = traceq("lint", tmp_path, "--format", "json")

    names = [recording["name"] for recording in json.loads(answer.out)["recordings"]]
    assert names == [
        str(tmp_path / f"host_{stamp}.pt.trace.json.gz")
        for stamp in ("9.9", "9.10", "10.9")
    ]
    assert len(traceq("summary", tmp_path, "--format", "csv").lines) == 4
    assert (
        "has 3 recordings in it: give one of"
        in traceq("query", tmp_path, "SELECT 1").err
    )


def test_a_folder_of_one_program_is_one_recording(tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").write_bytes(TRACE.read_bytes())
    (tmp_path / "memory.pickle.gz").write_bytes(SNAPSHOT.read_bytes())
    (tmp_path / "train.log").write_bytes(LOG.read_bytes())

    answer = traceq("lint", tmp_path, "--format", "json")
    plain = traceq("lint", TRACE, SNAPSHOT, LOG, "--format", "json")

    assert findings(answer) == findings(plain)


def test_a_folder_without_a_trace_says_where_one_is(tmp_path: Path) -> None:
    deep = tmp_path / "plugins" / "profile"
    deep.mkdir(parents=True)
    (deep / "x.pt.trace.json").write_bytes(CONTENT)

    assert traceq("lint", tmp_path).err == (
        f"traceq: {tmp_path} has no trace in it: give {deep}\n"
    )


def test_trace_snapshot_and_log_are_one_recording_in_any_order() -> None:
    answer = traceq("lint", TRACE, SNAPSHOT, LOG, "--format", "json")
    other = traceq("lint", LOG, SNAPSHOT, TRACE, "--format", "json")

    recordings = json.loads(answer.out)["recordings"]
    assert [recording["name"] for recording in recordings] == [str(TRACE)]
    skipped = {code for entry in recordings[0]["skipped"] for code in entry["rules"]}
    assert not {code for code in skipped if code.startswith(("LOG", "MEM"))}
    assert answer.out == other.out


def test_two_traces_are_two_recordings_and_what_goes_with_which_is_not_guessed() -> (
    None
):
    second = FIXTURE_TRACES["copies"]

    two = traceq("lint", TRACE, second, "--format", "json")
    three = traceq("lint", TRACE, second, LOG, "--format", "json")

    assert len(json.loads(two.out)["recordings"]) == 2
    assert two.err == ""
    assert len(json.loads(three.out)["recordings"]) == 3
    assert three.err == (
        "traceq: of 3 recordings it is not known which belong together, so each stands"
        " alone; give TRACE, SNAPSHOT and LOG of one program\n"
    )


RUN = [sys.executable, "-m", "traceq"]


@pytest.mark.real
@pytest.mark.parametrize("content", [CONTENT, TRACE.read_bytes()])
@pytest.mark.slow
def test_a_trace_comes_through_standard_input(content: bytes) -> None:
    done = subprocess.run(
        [*RUN, "summary", "-", "--format", "csv"],
        input=content,
        capture_output=True,
        check=True,
    )

    plain = traceq("summary", TRACE, "--format", "csv").out
    assert done.stderr == b""
    assert done.stdout.decode() == plain.replace(str(TRACE), "standard input")


@pytest.mark.real
@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
def test_a_terminal_as_standard_input_gets_a_sentence() -> None:
    ours, theirs = os.openpty()
    done = subprocess.run(
        [*RUN, "summary", "-"], stdin=theirs, capture_output=True, check=False
    )
    os.close(ours)
    os.close(theirs)

    assert done.returncode == 2
    assert done.stderr.startswith(b"traceq: standard input is a terminal: pipe a trace")


def test_standard_input_is_given_once() -> None:
    assert "give - only once" in traceq("lint", "-", "-").err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of Unix")
def test_a_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(TRACE.read_bytes(),))
    writer.start()

    trace = load(pipe, cache=False)
    writer.join()

    assert same(trace)
    assert trace.facts.path == str(pipe)
