"""Tools of the MCP server: commands of traceq in processes of their own.

A call can neither end the server nor leave its folders: paths are resolved and must be
inside, arguments are never options, time and the length of answers are limited.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from traceq.errors import UsageError
from traceq.formats.run import is_run, read_run

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CHARACTERS = 20_000
MOST_ROWS = 1_000
_SECONDS = 120
_TRY_SECONDS = 1_800
_MOST_FILES = 20_000
_LONGEST = 10_000
_FOUND = 1


class Tools:
    """Tools of the MCP server, for recordings in some folders only."""

    def __init__(self, folders: Sequence[Path], *, allow_run: bool = False) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.allow_run = allow_run

    def lint(self, path: str, top: int = 5) -> str:
        """Report what is wrong in a recording, most valuable first, each with its edit.

        `path` is a run folder, a trace or a memory snapshot; `top` limits the findings.
        """
        inside = self._inside(path)
        options = ["--format", "agent", "--top", str(_number(top, "top", 100))]
        return _capped(_traceq("lint", [*options, *self._root(inside)], inside))

    def explain(self, path: str, id: str) -> str:  # noqa: A002 - the clients' word
        """Explain one finding: all evidence, its edit, its proof, and the rule's page.

        `id` is the id that `lint` shows, or the code of a rule.
        """
        finding = self._finding(path, id)
        page = _traceq("rule", [], str(finding["code"]))
        return _capped(orjson.dumps(finding).decode() + "\n\n" + page)

    def diff(self, before: str, after: str) -> str:
        """Show what changed in a step from one recording to another, and why."""
        one, other = self._inside(before), self._inside(after)
        return _capped(_traceq("diff", ["--format", "full"], one, other))

    def query(self, path: str, sql: str, limit: int = 20) -> str:
        """Query the tables of a trace in SQL, as CSV of at most `limit` rows.

        `traceq schema` describes the tables: ops, kernels, runtime, steps and others.
        """
        rows = _number(limit, "limit", MOST_ROWS)
        inside = self._inside(path)
        text = _traceq("query", ["--format", "csv"], inside, _text(sql, "sql"))
        return _capped(_rows(text, rows))

    def memory(self, path: str) -> str:
        """Show what holds the GPU's memory at its peak, of a snapshot or a run."""
        return _capped(_traceq("memory", [], self._inside(path)))

    def try_remedy(self, path: str, id: str) -> str:  # noqa: A002 - the clients' word
        """Run the recorded program with and without a finding's remedy, and compare."""
        if not self.allow_run:
            msg = "running programs is off: start the server with --allow-run"
            raise UsageError(msg)
        finding, folder = self._finding(path, id), Path(self._inside(path))
        command = read_run(folder).command if is_run(folder) else ()
        if not command:
            msg = f"{path} does not say how its program is run"
            raise UsageError(msg)
        if not finding.get("remedy"):
            msg = f"{finding['code']} has no remedy that can be tried"
            raise UsageError(msg)
        only = ["--only", str(finding["code"])]
        return _capped(_traceq("try", only, *command, seconds=_TRY_SECONDS))

    def _finding(self, path: str, wanted: str) -> dict[str, Any]:
        inside = self._inside(path)
        text = _traceq("lint", ["--format", "json", *self._root(inside)], inside)
        findings = [
            one for each in orjson.loads(text)["recordings"] for one in each["findings"]
        ]
        for one in findings:
            if _text(wanted, "id") in {one["fingerprint"], one["code"]}:
                return dict(one)
        msg = f"{path} has no finding {wanted[:40]!r}: lint shows the ids"
        raise UsageError(msg)

    def _root(self, inside: str) -> list[str]:
        """Return the option for the source: the folder that the recording is in."""
        owner = next(one for one in self.folders if Path(inside).is_relative_to(one))
        return ["--no-packs", "--root", str(owner)]

    def _inside(self, path: str) -> str:
        """Return a path that is inside of the folders, also behind links."""
        text = _text(path, "path")
        for folder in self.folders:
            try:
                place = (folder / text).resolve(strict=True)
            except (OSError, RuntimeError, ValueError):
                continue
            if self._is_inside(place) and self._links_stay(place):
                return str(place)
        msg = f"{text[:200]!r} is not in the folders that this server may read"
        raise UsageError(msg)

    def _is_inside(self, place: Path) -> bool:
        return any(place.is_relative_to(folder) for folder in self.folders)

    def _links_stay(self, place: Path) -> bool:
        """Return whether no link in a folder leads out of the folders."""
        seen = 0
        for above, folders, files in os.walk(place):
            for name in (*folders, *files):
                seen += 1
                one = Path(above, name)
                if seen > _MOST_FILES or (
                    one.is_symlink() and not self._is_inside(one.resolve())
                ):
                    return False
        return True


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        msg = f"{name} is no text"
        raise UsageError(msg)
    if len(value) > _LONGEST:
        msg = f"{name} is longer than {_LONGEST} characters"
        raise UsageError(msg)
    return value


def _number(value: object, name: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        msg = f"{name} is a number from 1 to {most}"
        raise UsageError(msg)
    return value


def _traceq(
    command: str, options: Sequence[str], *arguments: str, seconds: int = _SECONDS
) -> str:
    """Return what a command prints; raise ``UsageError`` with its sentence.

    No argument is taken as an option, whatever it begins with.
    """
    line = [sys.executable, "-m", "traceq", command, *options, "--", *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    try:
        done = subprocess.run(  # noqa: S603 - traceq itself, and no shell
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        msg = f"traceq {command} took longer than {seconds} s"
        raise UsageError(msg) from None
    except (OSError, ValueError) as error:
        msg = f"traceq {command} cannot be run: {error}"
        raise UsageError(msg) from None
    if done.returncode not in (0, _FOUND):
        stderr = done.stderr.decode(errors="replace").strip().splitlines()
        msg = (
            stderr[-1].removeprefix("traceq: ")
            if stderr
            else f"traceq {command} ended with {done.returncode}"
        )
        raise UsageError(msg[:_LONGEST])
    return done.stdout.decode(errors="replace")


def _rows(text: str, limit: int) -> str:
    """Return a table's first rows, and how many there are."""
    rows = list(csv.reader(io.StringIO(text)))
    if len(rows) - 1 <= limit:
        return text
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(rows[: limit + 1])
    return f"{output.getvalue()}[capped: {limit} of {len(rows) - 1} rows]\n"


def _capped(text: str) -> str:
    """Return the beginning of a long answer, marked as such."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return (
        f"{text[:MOST_CHARACTERS]}\n"
        f"[capped: {MOST_CHARACTERS} of {len(text)} characters]\n"
    )
