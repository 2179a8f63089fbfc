"""Tools of the MCP server: commands of traceq in processes of their own.

A call can neither end the server nor leave its folders: paths are resolved and must be
inside, arguments are never options, time and the length of answers are limited.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import orjson

from traceq.errors import UsageError
from traceq.formats.run import is_run, read_run

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CHARACTERS = 20_000
MOST_ROWS = 1_000
_SECONDS = 120
_TRY_SECONDS = 1_800
_END_SECONDS = 20
_MOST_FILES = 20_000
_LONGEST = 10_000
_CHUNK = 1 << 20
# Of JSON that is read here, not answered.
_MOST_JSON = 64 << 20
_FOUND = 1
# Without the working directory: a project may have a file there that is named so.
_START = "import sys; sys.path[:1] = []; from traceq.cli import main; main()"


class _Answer(NamedTuple):
    """Output of a command: its beginning, and how long all of it is."""

    text: str
    characters: int
    lines: int


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
        page = _traceq("rule", [], str(finding["code"])).text
        text = orjson.dumps(finding).decode() + "\n\n" + page
        return _capped(_Answer(text, len(text), 0))

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
        table = _traceq("query", ["--format", "csv"], inside, _text(sql, "sql"))
        return _rows(table, rows)

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
        options = ["--format", "json", *self._root(inside)]
        report = _traceq("lint", options, inside, most=_MOST_JSON)
        if report.characters > _MOST_JSON:
            msg = f"{path} has more findings than can be explained: name one recording"
            raise UsageError(msg)
        recordings = orjson.loads(report.text)["recordings"]
        findings = [finding for each in recordings for finding in each["findings"]]
        for item in findings:
            if _text(wanted, "id") in {item["fingerprint"], item["code"]}:
                return dict(item)
        msg = f"{path} has no finding {wanted[:40]!r}: lint shows the ids"
        raise UsageError(msg)

    def _root(self, inside: str) -> list[str]:
        """Return the option for the source: the folder that the recording is in."""
        owner = next(path for path in self.folders if Path(inside).is_relative_to(path))
        return ["--no-packs", "--root", str(owner)]

    def _inside(self, path: str) -> str:
        """Return a path that is inside of the folders, also behind links."""
        text = _text(path, "path")
        for folder in self.folders:
            try:
                place = (folder / text).resolve(strict=True)
            except (OSError, RuntimeError, ValueError):
                continue
            if self._is_inside(place):
                self._refuse_links_out(place, text)
                return str(place)
        msg = f"{text[:200]!r} is not in the folders that this server may read"
        raise UsageError(msg)

    def _is_inside(self, place: Path) -> bool:
        return any(place.is_relative_to(folder) for folder in self.folders)

    def _refuse_links_out(self, place: Path, shown: str) -> None:
        """Raise if a link in a folder leads out of the folders."""
        seen = 0
        for above, folders, files in os.walk(place):
            seen += len(folders) + len(files)
            if seen > _MOST_FILES:
                msg = (
                    f"{shown[:200]!r} has more than {_MOST_FILES:,} files: name a"
                    " recording in it"
                )
                raise UsageError(msg)
            for name in (*folders, *files):
                path = Path(above, name)
                if path.is_symlink() and not self._is_inside(path.resolve()):
                    msg = (
                        f"{shown[:200]!r} has a link out of the folders that this"
                        " server may read: name a recording in it"
                    )
                    raise UsageError(msg)


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


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a process and return its status; end it if it takes longer.

    It has time to end what it started: `traceq try` ends the program that it runs.
    """
    try:
        return child.wait(seconds)
    except BaseException:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def _traceq(
    command: str,
    options: Sequence[str],
    *arguments: str,
    seconds: int = _SECONDS,
    most: int = MOST_CHARACTERS,
) -> _Answer:
    """Return what a command prints; raise ``UsageError`` with its sentence.

    No argument is taken as an option, whatever it begins with. Of the output no more
    than ``most`` characters are in memory.
    """
    line = [sys.executable, "-c", _START, command, *options, "--", *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            child = subprocess.Popen(  # noqa: S603 - traceq itself, and no shell
                line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
            )
            status = _wait(child, seconds)
        except subprocess.TimeoutExpired:
            msg = f"traceq {command} took longer than {seconds} s"
            raise UsageError(msg) from None
        except (OSError, ValueError) as error:
            msg = f"traceq {command} cannot be run: {error}"
            raise UsageError(msg) from None
        if status not in (0, _FOUND):
            lines = _read(errors, _CHUNK).text.strip().splitlines()
            ended = f"traceq {command} ended with {status}"
            msg = lines[-1].removeprefix("traceq: ") if lines else ended
            raise UsageError(msg[:_LONGEST])
        return _read(output, most)


def _read(file: IO[bytes], most: int) -> _Answer:
    """Return the beginning of what a command wrote; the rest is only counted."""
    file.seek(0)
    text, characters, lines = "", 0, 0
    with io.TextIOWrapper(file, "utf-8", "replace", newline="") as stream:
        while chunk := stream.read(_CHUNK):
            text += chunk[: most - len(text)]
            characters += len(chunk)
            lines += chunk.count("\n")
    return _Answer(text, characters, lines)


def _rows(table: _Answer, limit: int) -> str:
    """Return a table's first rows, and how many there are: each is one line."""
    rows, lines = table.lines - 1, table.text.split("\n")
    if rows <= limit or len(lines) <= limit + 1:
        return _capped(table)
    return "\n".join([*lines[: limit + 1], f"[capped: {limit} of {rows} rows]\n"])


def _capped(answer: _Answer) -> str:
    """Return the beginning of a long answer, marked as such."""
    if answer.characters <= MOST_CHARACTERS:
        return answer.text
    return (
        f"{answer.text[:MOST_CHARACTERS]}\n"
        f"[capped: {MOST_CHARACTERS} of {answer.characters} characters]\n"
    )
