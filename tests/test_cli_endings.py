"""Exits of the command line: closed and full outputs, plain terminals, Ctrl-C."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import RUN, TRACE, run_on_terminals

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.name != "posix", reason="a shell and signals of Unix"),
]

SCRIPT = str(Path(sys.executable).with_name("traceq"))
CALLS = {
    f"summary {TRACE}": 0,
    f"lint {TRACE}": 1,
    "lint missing.json": 2,
    "--version": 0,
    "collect --name": 2,
}


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("call", "closed"),
    [
        *((call, ">&- 2>&-") for call in CALLS),
        *((f"lint {TRACE}", closed) for closed in (">&-", "2>&-")),
        *(("lint missing.json", closed) for closed in (">&-", "2>&-")),
        ("--version", ">&-"),
    ],
)
@pytest.mark.slow
def test_a_closed_stream_changes_no_exit_status(call: str, closed: str) -> None:
    done = shell(f"{shlex.join(RUN)} {call} {closed}")

    assert done.returncode == CALLS[call]
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("call", ["schema", "--help"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_full_output_is_one_sentence_and_exit_2(call: str) -> None:
    done = shell(f"{shlex.join(RUN)} {call} >/dev/full")

    assert done.returncode == 2
    assert done.stderr == (
        "traceq: the output cannot be written: No space left on device\n"
    )


@pytest.mark.parametrize("call", ["schema", "--help", "lint --help", "rules"])
def test_a_reader_that_stops_early_is_no_error(call: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*RUN, *call.split()]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_full_standard_error_changes_no_exit_status() -> None:
    assert shell(f"{shlex.join(RUN)} lint missing.json 2>/dev/full").returncode == 2


PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("command", ["summary", "lint --format json"])
@pytest.mark.slow
def test_a_locale_without_letters_changes_no_exit_status(
    command: str, tmp_path: Path
) -> None:
    trace = tmp_path / "tracé.json.gz"
    trace.write_bytes(TRACE.read_bytes())

    done = shell(f"{shlex.join(RUN)} {command} {trace}", **PLAIN)

    assert (done.returncode, done.stderr) == (int("lint" in command), "")


@pytest.mark.slow
def test_a_dumb_terminal_gets_no_escape_codes_and_no_progress() -> None:
    out, err = run_on_terminals("summary", TRACE, "--no-cache", term="dumb")

    assert b"\x1b" not in out
    assert err == b""


INTERRUPTED_AT = """
import os, runpy, signal, sys

class At:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

wanted, how = sys.argv[1:3]
sys.argv = ["traceq", *sys.argv[3:]]
sys.meta_path.insert(0, At())
if how == "module":
    runpy.run_module("traceq", run_name="__main__", alter_sys=True)
else:
    runpy.run_path(how, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "how"),
    [
        ("traceq.cli.app", "module"),
        ("typer", SCRIPT),
        ("polars", "module"),
        ("rich.console", SCRIPT),
        ("traceq.cli.summary", "module"),
    ],
)
@pytest.mark.slow
def test_an_interruption_at_start_up_is_one_line(module: str, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, module, how, "summary", TRACE],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "traceq: interrupted\n"


INTERRUPTED_AFTER = """
import atexit, os, signal, sys
from traceq.cli import main

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass

sys.argv = ["traceq", "--version"]
main()
atexit.register(interrupt)
"""


def test_an_interruption_at_the_end_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AFTER],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 130
    assert done.stderr == "traceq: interrupted\n"


LATER = """
import atexit, sys
from traceq.cli import main

class Freed:
    def __del__(self):
        print("freed")

kept = Freed()
atexit.register(print, "before")
sys.argv = ["traceq", *sys.argv[1:]]
try:
    main()
finally:
    atexit.register(print, "after")
"""


@pytest.mark.parametrize(("command", "status"), [("--version", 0), ("no-such", 2)])
def test_the_end_calls_what_it_should_and_frees_nothing(
    command: str, status: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATER, command],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == status
    assert done.stdout.splitlines()[-1] == "after"


def test_a_job_in_the_background_ignores_interruptions() -> None:
    done = shell(
        "trap '' INT;"
        f" {shlex.join([sys.executable, '-c', INTERRUPTED_AT])} typer module --help"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: traceq ")
