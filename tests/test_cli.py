"""The command line: help, exit statuses, errors in one sentence, pipes, terminals."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import FIXTURES, ROOT

from traceq import __version__
from traceq.api import summary

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = (
    "",
    "lint",
    "rules",
    "rule",
    "test",
    "summary",
    "query",
    "schema",
    "cache",
    "cache info",
    "cache clear",
)
TRACE = FIXTURES[0]
RUN = [sys.executable, "-m", "traceq"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_an_example_that_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("trace.json.gz", "before.json.gz", "after.json.gz"):
        (tmp_path / name).write_bytes(TRACE.read_bytes())
    (tmp_path / "trace.json").write_bytes(gzip.decompress(TRACE.read_bytes()))
    (tmp_path / "train.log").write_text("step 1\n")
    shutil.copytree(ROOT / "rules" / "sync", tmp_path / "ci" / "my_rules")

    shown = traceq(*command.split(), "--help", width=200)
    (example,) = re.findall(r"Example:\n +traceq (.*)", shown.out)
    done = traceq(*shlex.split(example))

    assert shown.status == 0
    assert example.startswith(command)
    assert (done.status, done.err) == (example.startswith("lint"), "")
    assert done.out


def test_it_says_its_version() -> None:
    assert traceq("--version").out == f"traceq {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["sumary", "x"], "Did you mean 'summary'?"),  # codespell:ignore
        (["summary", "--formt", "json", "x"], "--format"),
        (["summary", "--format", "xml", "x"], "'text', 'json', 'csv', 'markdown'"),
        (["summary"], "missing argument 'PATH'"),
        (["schema", "kernel"], "there are ops, kernels,"),
        (["regions", "x", "--compare", "A"], "; traceq regions --help lists"),
    ],
)
def test_a_wrong_call_exits_2_with_a_hint(arguments: list[str], hint: str) -> None:
    answer = traceq(*arguments, width=200)

    assert answer.status == 2
    assert answer.out == ""
    assert hint in answer.err
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("traceq: ")


def completed(*words: str) -> list[str]:
    """Return how bash would complete the last of some words."""
    script = Path(sys.executable).with_name("traceq")
    asked = {
        "_TRACEQ_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("traceq", *words)),
        "COMP_CWORD": str(len(words)),
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    done = subprocess.run(
        [script], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    answers = done.stdout.split()
    return [*answers, *(["slowly"] if "polars" in imported else [])]


def test_shells_complete_its_commands_without_waiting_for_polars() -> None:
    assert completed("sum") == ["summary"]


def test_shells_complete_codes_of_rules_without_waiting_for_polars() -> None:
    every = [line.split()[0] for line in traceq("rules").lines]

    assert completed("rule", "ATT") == [
        name for name in every if name.startswith("ATT")
    ]
    assert completed("lint", "x", "--select", "") == every
    assert completed("lint", "--ignore", "ATT001,syn") == [
        "ATT001,syn001",
        "ATT001,syn002",
        "ATT001,syn003",
    ]


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["lint", "--fail-on", ""], ["info", "warning", "error"]),
        (["summary", "--steps-by", "pro"], ["profiler"]),
        (["lint", "--format", "s"], ["sarif"]),
        (["regions", "--by", ""], ["region", "module"]),
        (["diff", "--fail-on", "new"], ["new-findings"]),
        (["fix", "--only", "GEM001,syn003"], ["GEM001,syn003"]),
        (["collect", "--steps-by", "op"], ["optimizer"]),
        (["collect", "--no-m"], ["--no-memory"]),
        (["collect", "--", "python", "--no-m"], []),
    ],
)
def test_shells_complete_options_and_choices(
    words: list[str], choices: list[str]
) -> None:
    assert completed(*words) == choices


@pytest.mark.parametrize(
    ("shell", "script", "start"),
    [
        ("bash", ".bash_completions/traceq.sh", ".bashrc"),
        ("zsh", ".zfunc/_traceq", ".zshrc"),
        ("fish", ".config/fish/completions/traceq.fish", None),
    ],
)
def test_completion_is_installed_once_and_what_is_there_stays(
    shell: str,
    script: str,
    start: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, shell))
    if start:
        (tmp_path / start).write_text("alias ll='ls -l'")

    answers = [traceq("--install-completion") for _ in range(2)]

    assert {answer.status for answer in answers} == {0}
    assert "_TRACEQ_COMPLETE" in (tmp_path / script).read_text()
    if start:
        first, *added = (tmp_path / start).read_text().split("\n")
        assert first == "alias ll='ls -l'"
        assert "".join(added).count(script.split("/", maxsplit=1)[0]) == 1


def test_an_unknown_shell_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("tcsh", "tcsh"))

    answer = traceq("--show-completion")

    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "Shell tcsh not supported.\n"


def nothing(_: Path) -> None:
    pass


def missing_folder(path: Path) -> None:
    path.mkdir()


def refused(write: Callable[[Path], object], what_to_do: str, name: str) -> object:
    return pytest.param(write, what_to_do, id=name)


REFUSED = [
    refused(nothing, "check the name", "missing"),
    refused(missing_folder, "give the trace itself", "directory"),
    refused(lambda path: path.write_bytes(b""), "there is no trace in it", "empty"),
    refused(lambda path: path.write_text("hello"), "begins with '{' or '['", "text"),
    refused(lambda path: path.write_text("[]"), "no event", "empty list"),
    refused(lambda path: path.write_text('{"a": 1}'), '"traceEvents"', "other JSON"),
    refused(
        lambda path: path.write_text(
            json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []})
        ),
        "give the trace that export_chrome_trace wrote",
        "execution trace",
    ),
    refused(
        lambda path: path.write_bytes(pickle.dumps({"segments": []})),
        "give the .json or .json.gz that the profiler wrote",
        "snapshot",
    ),
    refused(
        lambda path: path.write_bytes(gzip.compress(pickle.dumps({"segments": []}))),
        "give the .json or .json.gz that the profiler wrote",
        "snapshot, gzipped",
    ),
    refused(
        lambda path: path.write_bytes(gzip.compress(b"junk" * 99)),
        "begins with '{' or '['",
        "junk, gzipped",
    ),
    refused(
        lambda path: path.write_bytes(b"\x1f\x8b" + bytes(range(200))),
        "cannot be unpacked",
        "broken gzip",
    ),
]


@pytest.mark.parametrize("command", ["summary", "query"])
@pytest.mark.parametrize(("write", "what_to_do"), REFUSED)
def test_a_refused_file_gets_one_sentence_and_exit_2(
    write: Callable[[Path], object], what_to_do: str, command: str, tmp_path: Path
) -> None:
    path = tmp_path / "given.json"
    write(path)
    sql = ["SELECT 1"] if command == "query" else []

    answer = traceq(command, path, *sql)

    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert answer.err.startswith(f"traceq: {path} ")
    assert what_to_do in answer.err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(TRACE.read_bytes())
    path.chmod(0)

    assert traceq("summary", path).err == (
        f"traceq: {path} cannot be read: Permission denied\n"
    )


def test_a_name_that_would_act_on_the_terminal_is_made_harmless(tmp_path: Path) -> None:
    answer = traceq("summary", tmp_path / "a\x1b[2J\nb.json")

    assert "\x1b" not in answer.err
    assert answer.err.count("\n") == 1


def test_of_several_files_the_good_ones_are_shown_and_the_bad_one_is_named(
    tmp_path: Path,
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("hello")

    answer = traceq("summary", TRACE, bad, FIXTURES[1])

    assert answer.status == 2
    assert len(answer.lines) == 3
    output = answer.err.splitlines()
    assert output[0].startswith(f"traceq: {bad} is not a trace")
    assert output[1:] == ["traceq: 1 of 3 files could not be read"]


def break_down(*_: object, **__: object) -> None:
    msg = "wheels\ncame off"
    raise ZeroDivisionError(msg)


def test_a_fault_of_traceq_is_one_sentence_and_exit_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "summarise", break_down)

    answer = traceq("summary", TRACE)

    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert "internal error, ZeroDivisionError: wheels" in answer.err
    assert "TRACEQ_TRACEBACK=1" in answer.err


def test_a_read_error_is_no_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "/disk/trace.json")

    monkeypatch.setattr("traceq.api.lint.lint_files", fails)

    answer = traceq("lint", tmp_path)

    assert answer.status == 2
    assert answer.err == "traceq: /disk/trace.json cannot be read: Input/output error\n"


def test_the_traceback_of_a_fault_is_shown_to_who_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "summarise", break_down)
    monkeypatch.setenv("TRACEQ_TRACEBACK", "1")

    with pytest.raises(ZeroDivisionError):
        traceq("summary", TRACE)


@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
@pytest.mark.parametrize("arguments", ["summary", "schema"])
@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(arguments: str) -> None:
    # `true` reads nothing, so that every byte meets a closed pipe.
    command = f"{shlex.join(RUN)} {arguments} {TRACE if arguments == 'summary' else ''}"
    script = f"{command} | true; echo ${{PIPESTATUS[0]}}"

    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_an_output_that_knows_few_characters_gets_those() -> None:
    done = subprocess.run(
        [*RUN, "summary", TRACE],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0
    assert b"397 ?s a step" in done.stdout


INTERRUPTED = """
import contextlib, os, signal, sys
from traceq.cli import main, output

@contextlib.contextmanager
def reading(name):
    yield lambda done, total: os.kill(os.getpid(), signal.SIGINT)

output.reading = reading
sys.argv = ["traceq", "summary", "--no-cache", sys.argv[1]]
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of Unix")
def test_an_interruption_while_a_trace_is_read_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, TRACE],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "traceq: interrupted\n"


def test_an_interruption_while_tables_are_kept_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("traceq.cache.store.finish", interrupt)

    answer = traceq("summary", TRACE)

    assert (answer.status, answer.err) == (130, "traceq: interrupted\n")


def run_on_terminals(
    *arguments: str | Path, term: str = "xterm"
) -> tuple[bytes, bytes]:
    """Return what a command writes to a terminal as output and to one as errors."""
    out, out_end = os.openpty()
    err, err_end = os.openpty()
    environment = os.environ | {"TERM": term}
    environment.pop("COLUMNS", None)
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [*RUN, *arguments], stdout=out_end, stderr=err_end, env=environment
    ) as running:
        os.close(out_end)
        os.close(err_end)
        written = (_read_all(out), _read_all(err))
    assert running.returncode == 0
    return written


def _read_all(terminal: int) -> bytes:
    content = b""
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:
            return content
        if not block:
            return content
        content += block


@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
def test_a_terminal_sees_progress_on_stderr_and_bold_titles() -> None:
    out, err = run_on_terminals("summary", TRACE, "--no-cache")

    # What it says depends on how fast it is; the cursor is hidden meanwhile.
    assert b"\x1b[?25l" in err
    assert b"\x1b[?25l" not in out
    assert b"\x1b[1m" in out


@pytest.mark.skipif(os.name != "posix", reason="terminals of Unix")
def test_a_terminal_sees_help_in_panels_and_a_dumb_one_plain_text() -> None:
    rich, _ = run_on_terminals("--help")
    plain, _ = run_on_terminals("--help", term="dumb")

    assert re.search("╭─.* Look .*─╮", rich.decode())
    assert b"\nLook:" in plain
    assert b"\x1b" not in plain


def test_a_pipe_sees_no_progress_and_no_colour() -> None:
    done = subprocess.run(
        [*RUN, "summary", TRACE, "--no-cache"], capture_output=True, check=True
    )

    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


@pytest.mark.usefixtures("own_cache")
def test_no_cache_keeps_no_tables() -> None:
    traceq("summary", TRACE, "--no-cache")

    assert ": 0 traces, 0 B of at most 4.00 GiB" in traceq("cache", "info").out


def test_the_cache_says_where_it_is_and_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path))
    monkeypatch.setenv("TRACEQ_CACHE_MB", "7")
    traceq("summary", TRACE)

    info = traceq("cache", "info").out

    assert re.fullmatch(
        rf"{tmp_path}: 1 trace, \d+ KiB of at most 7\.00 MiB\n", info
    ), info


@pytest.mark.usefixtures("own_cache")
def test_the_cache_is_cleared_and_says_so() -> None:
    traceq("summary", TRACE)

    first, second = traceq("cache", "clear").out, traceq("cache", "clear").out

    assert re.fullmatch(r"removed the tables of 1 trace, \d+ KiB\n", first), first
    assert second == "removed the tables of 0 traces, 0 B\n"


def test_what_an_option_sets_ends_with_its_command(tmp_path: Path) -> None:
    assert traceq("summary", TRACE, "--capture", tmp_path / "nothing.json").status == 2

    copies = next(path for path in FIXTURES if path.parent.name == "copies")
    assert traceq("check", copies.parent, "--against", copies).status == 0
