"""Inputs on other machines: fetched through fsspec, cached, and without secrets."""

from __future__ import annotations

import functools
import http.server
import json
import os
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from command import traceq
from recordings import CAPTURES, FIXTURE_TRACES, loaded

from traceq.errors import InputError
from traceq.inputs import remote
from traceq.inputs.display_path import DisplayPath, Url, parse_path, without_secrets
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

fsspec: Any = pytest.importorskip("fsspec")

TRACE = FIXTURE_TRACES["attn_mask_fmha"]


class Memory(Protocol):
    """The file system that fsspec has in memory."""

    store: dict[str, object]

    def pipe(self, path: str, value: bytes) -> None: ...


@pytest.fixture(autouse=True)
def _cache(own_cache: Path) -> None:
    """Give each test a cache of its own."""


@pytest.fixture
def memory() -> Iterator[Memory]:
    system: Memory = fsspec.filesystem("memory")
    yield system
    system.store.clear()


class Handler(http.server.SimpleHTTPRequestHandler):
    """A server of files that counts, and refuses those that are called secret."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"GET {self.path}")
        if "forbidden" in self.path:
            self.send_error(403)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.asked.append(f"HEAD {self.path}")
        if "forbidden" in self.path:
            self.send_error(403)
        else:
            super().do_HEAD()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Serve a folder; yield its address, the folder and what was asked for."""
    pytest.importorskip("aiohttp")
    folder = tmp_path / "served"
    folder.mkdir()
    asked: list[str] = []
    handler = type("Counting", (Handler,), {"asked": asked})
    serve = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", folder, asked
        running.shutdown()
        thread.join()


def test_a_trace_behind_a_url_has_the_same_tables(memory: Memory) -> None:
    memory.pipe("/runs/trace.json.gz", TRACE.read_bytes())

    trace = load("memory://runs/trace.json.gz")

    assert trace.kernels.equals(loaded(TRACE).kernels)
    assert trace.facts.path == "memory://runs/trace.json.gz"


@pytest.mark.slow
def test_every_command_that_reads_takes_a_url(memory: Memory, tmp_path: Path) -> None:
    memory.pipe("/trace.json.gz", TRACE.read_bytes())
    snapshot = CAPTURES.path("copies.snapshot.pickle.gz")
    memory.pipe("/memory.pickle.gz", snapshot.read_bytes())
    url = "memory://trace.json.gz"

    assert f"\n{url}\n" in "\n" + traceq("lint", url).out
    assert traceq("summary", url).status == 0
    assert traceq("query", url, "SELECT count(*) FROM kernels").status == 0
    assert traceq("diff", url, TRACE).status == 0
    assert traceq("memory", "memory://memory.pickle.gz").status == 0
    assert traceq("shrink", url, "-o", tmp_path / "fixture").status == 0
    assert traceq("check", TRACE.parent, "--against", url).status in (0, 1)


def test_trace_and_snapshot_may_lie_in_different_places(memory: Memory) -> None:
    memory.pipe("/trace.json.gz", TRACE.read_bytes())
    snapshot = CAPTURES.path("copies.snapshot.pickle.gz")

    answer = traceq("lint", "memory://trace.json.gz", snapshot, "--format", "json")

    names = [recording["name"] for recording in json.loads(answer.out)["recordings"]]
    assert names == ["memory://trace.json.gz"]


def test_what_was_fetched_is_fetched_again_only_when_it_changed(
    server: tuple[str, Path, list[str]],
) -> None:
    address, folder, asked = server
    (folder / "trace.json.gz").write_bytes(TRACE.read_bytes())
    url = f"{address}/trace.json.gz"

    answers = [traceq("summary", url) for _ in range(2)]
    fetches = sum(name.startswith("GET") for name in asked)
    os.utime(folder / "trace.json.gz", (1, 1))
    traceq("summary", url)

    assert [answer.status for answer in answers] == [0, 0]
    assert fetches == 1
    assert sum(name.startswith("GET") for name in asked) == 2
    assert "1 trace and 2 fetched files" in traceq("cache", "info").out
    traceq("cache", "clear")
    assert "0 traces, 0 B" in traceq("cache", "info").out


def test_without_the_cache_nothing_of_it_is_kept(
    server: tuple[str, Path, list[str]], own_cache: Path
) -> None:
    address, folder, _ = server
    (folder / "trace.json.gz").write_bytes(TRACE.read_bytes())

    assert traceq("summary", f"{address}/trace.json.gz", "--no-cache").status == 0
    assert not list(own_cache.rglob("*"))


SECRET = "s3cr3t"  # noqa: S105 - a word to look for


@pytest.mark.parametrize("name", ["trace.json.gz", "missing.json", "forbidden.json"])
@pytest.mark.slow
def test_what_may_be_secret_in_a_url_is_neither_printed_nor_stored(
    name: str, server: tuple[str, Path, list[str]], own_cache: Path
) -> None:
    address, folder, asked = server
    (folder / "trace.json.gz").write_bytes(TRACE.read_bytes())
    url = address.replace("//", f"//me:{SECRET}@") + f"/{name}?sig={SECRET}%2F#{SECRET}"

    answer = traceq("lint", url, "--format", "json")

    assert f"{address}/{name}" in answer.out + answer.err
    assert any(f"?sig={SECRET}%2F" in item for item in asked)
    names = "".join(str(path) for path in own_cache.rglob("*"))
    texts = b"".join(path.read_bytes() for path in own_cache.rglob("*.json"))
    assert SECRET not in answer.out + answer.err + names + texts.decode()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.json", "the server answers 404"),
        ("forbidden", "the server answers 403"),
    ],
)
def test_why_nothing_was_fetched_is_said_in_one_sentence(
    name: str, reason: str, server: tuple[str, Path, list[str]]
) -> None:
    url = f"{server[0]}/{name}"

    answer = traceq("lint", url)

    assert answer.status == 2
    assert answer.err == f"traceq: {url} cannot be fetched: {reason}\n"


def test_a_server_that_is_not_there_is_said() -> None:
    pytest.importorskip("aiohttp")

    answer = traceq("lint", "http://127.0.0.1:9/trace.json")

    assert answer.status == 2
    assert answer.err == (
        "traceq: http://127.0.0.1:9/trace.json cannot be fetched: it does not exist, or"
        " the server cannot be reached\n"
    )


def test_what_is_larger_than_the_limit_is_not_fetched(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    memory.pipe("/trace.json", b"[" * (9 << 20))
    monkeypatch.setattr(remote, "MOST_BYTES", 1 << 20)

    with pytest.raises(InputError, match="is larger than"):
        load("memory://trace.json")
    assert not [path for path in own_cache.rglob("*") if path.is_file()]


def test_what_to_install_is_said_where_fsspec_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)

    assert traceq("lint", "s3://bucket/trace.json").err == (
        "traceq: s3://bucket/trace.json is on another machine: pip install"
        " 'torch-traceq[remote]'\n"
    )


def test_the_package_for_a_protocol_is_named_by_fsspec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)

    answer = traceq("lint", "s3://bucket/trace.json")

    assert answer.err.count("\n") == 1
    assert answer.err.startswith("traceq: s3://bucket/trace.json needs another package")
    assert "s3fs" in answer.err


def test_an_unknown_protocol_and_a_folder_are_refused(memory: Memory) -> None:
    memory.pipe("/runs/trace.json", b"[]")

    assert "fsspec does not know" in traceq("lint", "nowhere://x/y.json").err
    assert "is a folder: give a file in it" in traceq("lint", "memory://runs").err


def test_a_url_keeps_its_slashes_and_file_is_a_path() -> None:
    url = parse_path("s3://bucket//a//b.json?x=http://y")

    assert isinstance(url, Url)
    assert url.url == "s3://bucket//a//b.json?x=http://y"
    assert str(url) == "s3://bucket//a//b.json"
    assert not url.exists()
    assert str(parse_path("file:///tmp/x.json")) == "/tmp/x.json"  # noqa: S108 - not opened
    assert without_secrets("gs://bucket/x") == "gs://bucket/x"


def test_a_path_keeps_its_name_on_its_way_to_another_process(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    url = parse_path("https://host/a.json?sig=x")
    shown = DisplayPath.of(file, "x.zip: a.json")

    for path in (shown, url):
        copy = pickle.loads(pickle.dumps(path))  # noqa: S301 - our own
        assert (str(copy), os.fspath(copy)) == (str(path), os.fspath(path))
    assert pickle.loads(pickle.dumps(url)).url == "https://host/a.json?sig=x"  # noqa: S301
