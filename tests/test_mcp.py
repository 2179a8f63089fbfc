"""MCP server: what a client gets, what it is refused, and that it stays alive."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT

from traceq.agent import tools
from traceq.agent.mcp_server import build
from traceq.agent.tools import MOST_CHARACTERS, Tools
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

if not find_spec("mcp"):
    pytest.skip("the SDK is not installed", allow_module_level=True)

TUTORIAL = ROOT / "fixtures" / "tutorial" / "0"
HOSTILE_PATHS = [
    "/etc/passwd",
    "../secret.json",
    "../../../../etc",
    "out",
    "inside/out.json",
    "-",
    "--help",
    "",
    "\0",
    "a" * 50_000,
    "http://localhost/x",
    "s3://bucket/x",
    "file:///etc/passwd",
    "~/.ssh",
    "run\n--format=json",
    "nothing",
    "|id",
    "$(id)",
    "C:\\Windows",
    "run/../../secret.json",
]
HOSTILE_SQL = [
    "DROP TABLE ops",
    "CREATE TABLE x AS SELECT 1",
    "SELECT * FROM read_csv('/etc/passwd')",
    "--help",
    "SELECT 1; SELECT 2",
]
HOSTILE_VALUES: list[Any] = [None, -1, 0, 10**12, 1.5, "5; ls", [], {}, True, "NaN"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a recording, and links out of it."""
    inside = tmp_path / "inside"
    shutil.copytree(TUTORIAL, inside / "run")
    (tmp_path / "secret.json").write_text('{"traceEvents": []}', encoding="utf-8")
    (inside / "out").symlink_to("/etc")
    (inside / "out.json").symlink_to("../secret.json")
    linked = inside / "linked"
    linked.mkdir()
    (linked / "trace.json").symlink_to("../../secret.json")
    return inside


def _sdk() -> Any:  # noqa: ANN401 - the SDK's
    """Return the SDK, which takes a second to import: none that collects needs it."""
    return import_module("mcp")


def asked(server: Any, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - the SDK's
    """Return what a client of a server gets."""

    async def session() -> Any:  # noqa: ANN401
        async with _sdk().Client(server) as client:
            return await ask(client)

    return asyncio.run(session())


def call(folder: Path, name: str, **arguments: Any) -> tuple[bool, str]:  # noqa: ANN401
    """Return whether a call failed, and its text."""
    answer = asked(build([folder]), lambda client: client.call_tool(name, arguments))
    return bool(answer.is_error), answer.content[0].text


def test_tools_are_listed_with_what_they_take(folder: Path) -> None:
    tools = asked(build([folder]), lambda client: client.list_tools()).tools

    assert [tool.name for tool in tools] == [
        "lint",
        "explain",
        "diff",
        "query",
        "memory",
    ]
    assert all(tool.description for tool in tools)
    assert tools[3].input_schema["required"] == ["path", "sql"]


def test_programs_are_run_only_if_that_is_allowed(folder: Path) -> None:
    server = build([folder], allow_run=True)
    tools = asked(server, lambda client: client.list_tools()).tools

    assert tools[-1].name == "try"
    with pytest.raises(UsageError, match="--allow-run"):
        Tools([folder]).try_remedy("run", "LCH004")


@pytest.mark.slow
def test_a_recording_is_linted(folder: Path) -> None:
    failed, text = call(folder, "lint", path="run", top=1)

    assert not failed
    assert "[1] CPY003" in text
    assert "[2]" not in text


@pytest.mark.slow
def test_a_finding_is_explained_with_its_edit(folder: Path) -> None:
    failed, text = call(folder, "explain", path="run", id="LCH004")

    assert not failed
    assert '"kind":"certain"' in text
    assert "How to fix it" in text


@pytest.mark.slow
def test_a_query_has_at_most_its_limit(folder: Path) -> None:
    failed, text = call(folder, "query", path="run", sql="SELECT * FROM ops", limit=2)

    assert not failed
    assert text.splitlines()[-1].startswith("[capped: 2 of ")
    assert len(text.splitlines()) == 4


@pytest.mark.slow
def test_a_long_answer_is_capped_and_marked(folder: Path) -> None:
    _, text = call(folder, "query", path="run", sql="SELECT * FROM ops", limit=1000)

    assert MOST_CHARACTERS < len(text) < MOST_CHARACTERS + 100
    assert text.endswith("characters]\n")


def test_a_path_outside_is_refused(folder: Path) -> None:
    failed, text = call(folder, "lint", path="../secret.json")

    assert failed
    assert "not in the folders" in text


def test_a_folder_with_a_link_out_of_it_is_refused(folder: Path) -> None:
    failed, text = call(folder, "lint", path="linked")

    assert failed
    assert "'linked' has a link out of the folders" in text


def test_a_description_has_no_indentation(folder: Path) -> None:
    tools = asked(build([folder]), lambda client: client.list_tools()).tools

    assert not [tool.name for tool in tools if "\n " in tool.description]


@pytest.mark.slow
def test_no_file_of_the_working_directory_is_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "polars.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    failed, text = call(folder, "query", path="run", sql="SELECT count(*) FROM steps")

    assert (failed, text) == (False, "len\n2\n")


@pytest.mark.slow
def test_a_row_of_any_length_is_capped(folder: Path) -> None:
    sql = "SELECT lpad('x', 2000000, 'y') AS wide FROM steps"
    failed, text = call(folder, "query", path="run", sql=sql)

    assert not failed
    assert text.endswith("\n[capped: 20000 of 4000007 characters]\n")


@pytest.mark.slow
def test_rows_are_counted_where_a_cell_has_several_lines(folder: Path) -> None:
    sql = "SELECT 'a\n\"b' AS text FROM ops"
    failed, text = call(folder, "query", path="run", sql=sql, limit=2)

    assert not failed
    assert text == 'text\n"a\\n""b"\n"a\\n""b"\n[capped: 2 of 1908 rows]\n'


@pytest.mark.slow
def test_a_write_is_refused(folder: Path) -> None:
    failed, text = call(folder, "query", path="run", sql="CREATE TABLE x AS SELECT 1")

    assert failed
    assert "not a question" in text


def hostile_calls() -> list[tuple[str, dict[str, Any]]]:
    """Return a hundred calls that no client should make."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for path in HOSTILE_PATHS:
        calls += [
            ("lint", {"path": path}),
            ("memory", {"path": path}),
            ("diff", {"before": "run", "after": path}),
        ]
    calls += [("query", {"path": "run", "sql": sql}) for sql in HOSTILE_SQL]
    for value in HOSTILE_VALUES:
        calls += [
            ("lint", {"path": value}),
            ("query", {"path": "/", "sql": value}),
            ("query", {"path": "/", "sql": "SELECT 1", "limit": value}),
        ]
    calls += [
        ("write", {"path": "x", "text": "y"}),
        ("try", {"path": "run", "id": "LCH004"}),
        ("explain", {"path": "run"}),
        ("explain", {"path": "/etc", "id": "LCH004"}),
        ("", {}),
    ]
    return calls


@pytest.mark.slow
def test_a_hundred_hostile_calls_are_errors_and_the_server_lives(folder: Path) -> None:
    words = ["-m", "traceq", "agent", "mcp", str(folder)]
    server = _sdk().StdioServerParameters(command=sys.executable, args=words)

    async def ask(client: Any) -> tuple[list[str], Any]:  # noqa: ANN401
        passed = []
        for name, arguments in hostile_calls():
            try:
                answer = await client.call_tool(name, arguments)
            except _sdk().MCPError:
                continue
            if not answer.is_error:
                passed.append(f"{name} {arguments}"[:200])
        return passed, await client.list_tools()

    passed, tools = asked(server, ask)

    assert len(hostile_calls()) >= 100
    assert passed == []
    assert len(tools.tools) == 5


def test_a_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)

    with pytest.raises(UsageError, match=r"torch-traceq\[mcp\]"):
        build([folder])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no signal to end it")
def test_a_program_ends_with_the_try_that_takes_too_long(tmp_path: Path) -> None:
    program, started = tmp_path / "train.py", tmp_path / "started"
    program.write_text(
        "import os, time\n"
        f"open({str(started)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    run = ("try", ["--out", str(tmp_path / "runs")], sys.executable, str(program))

    with pytest.raises(UsageError, match="took longer than 12 s"):
        tools._traceq(*run, seconds=12)  # noqa: SLF001 - its limit is half an hour

    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
