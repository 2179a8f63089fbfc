"""The user's git repository: its files, found by recorded paths, and their lines.

The profiler cuts paths to the part after an entry of sys.path, and traces come from
other machines. A file is found by the end of its path, if exactly one file ends so.
Nothing outside of the root is ever opened.
"""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What Python calls the function that a file's own statements are in.
_MODULE_LEVEL = "<module>"
_LAMBDA = "<lambda>"
_GIT_S = 30
_MOST_FILES = 200_000
_LARGEST = 2_000_000
_NO_FOLDERS = {"node_modules", "__pycache__", "site-packages", "dist-packages"}
_LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
# A repository's own configuration may name programs to run.
_GIT = ("git", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True)
class Repository:
    """A folder with the files in it, by their last name."""

    root: Path
    files: dict[str, list[str]] = field(repr=False)

    def find(
        self, file: str, function: str | None = None, line: int | None = None
    ) -> str | None:
        """Return the one file that a recorded path means, from the root; else none.

        Where several end alike, it is the one in which the function begins at the line,
        if it has a name; one without a function of that name is another program's.
        """
        path = PurePosixPath(file.replace("\\", "/"))
        ends = self.files.get(path.name, [])
        parts = path.parts
        for count in range(len(parts), 0, -1):
            tail = "/".join(parts[-count:])
            files = [end for end in ends if end == tail or end.endswith(f"/{tail}")]
            if len(files) > 1:
                if function == _LAMBDA:  # nothing but its line names it
                    return None
                files = [file for file in files if self.begins(file, function, line)]
            files = [file for file in files if self._may_have(file, function)]
            if files:
                return files[0] if len(files) == 1 else None
            if not path.is_absolute():
                return None
        return None

    def lines(self, file: str) -> Sequence[str]:
        """Return the lines of a file of the repository; none if it cannot be read."""
        path = self.root / file
        try:
            inside = path.resolve().is_relative_to(self.root.resolve())
            if not inside or not path.is_file() or path.stat().st_size > _LARGEST:
                return ()
            return path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return ()

    def begins(self, file: str, function: str | None, line: int | None) -> bool:
        """Return whether a function begins at a line, with its decorators.

        A file's own statements begin anywhere in it.
        """
        if function == _MODULE_LEVEL:
            return self.holds(file, function, line)
        return any(line == first for first, _ in self._spans(file, function))

    def holds(self, file: str, function: str | None, line: int | None) -> bool:
        """Return whether a line is one of a function of this name."""
        return line is not None and any(
            first <= line <= last for first, last in self._spans(file, function)
        )

    def _may_have(self, file: str, function: str | None) -> bool:
        """Return whether a file may have a function: not if it has only others."""
        known = {name for name, _, _ in _functions("\n".join(self.lines(file)))}
        named = function is not None and not function.startswith("<")
        return not (named and known) or function in known

    def _spans(self, file: str, function: str | None) -> list[tuple[int, int]]:
        functions = _functions("\n".join(self.lines(file)))
        return [(first, last) for name, first, last in functions if name == function]


@lru_cache(maxsize=256)
def _functions(source: str) -> frozenset[tuple[str, int, int]]:
    """Return the functions of a file: name, first and last line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    spans = {(_MODULE_LEVEL, 1, source.count("\n") + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = [
                node.lineno,
                *(decorator.lineno for decorator in node.decorator_list),
            ]
            spans.add((node.name, min(first), node.end_lineno or node.lineno))
        elif isinstance(node, ast.Lambda):
            spans.add((_LAMBDA, node.lineno, node.end_lineno or node.lineno))
    return frozenset(spans)


def find_root(start: Path) -> Path | None:
    """Return the root of the git repository that a folder is in, if it is in one."""
    return next(
        (folder for folder in (start, *start.parents) if (folder / ".git").exists()),
        None,
    )


def read_repository(root: Path) -> Repository:
    """List the files under a root: those that git knows, else all of them.

    Git knows no file of a folder that it ignores.
    """
    files: dict[str, list[str]] = {}
    for number, file in enumerate(_from_git(root) or _walked(root)):
        if number >= _MOST_FILES:
            break
        files.setdefault(file.rpartition("/")[2], []).append(file)
    return Repository(root, files)


def is_tracked(root: Path, file: Path) -> bool:
    """Return whether git has a file: committed in the repository, or added to be."""
    if not file.is_relative_to(root):
        return False
    inside = file.relative_to(root).as_posix()
    return _git(root, "ls-files", "--error-unmatch", "--", inside) is not None


def changed_files(root: Path) -> list[str] | None:
    """Return the files that differ from the last commit; None if there is no git."""
    listed = _git(root, "status", "--porcelain=v1", "-z", "--untracked-files=no")
    if listed is None:
        return None
    return [os.fsdecode(line[3:]) for line in listed.split(b"\0") if line]


def commit_of(root: Path, name: str = "HEAD") -> tuple[str, int] | None:
    """Return the hash and the Unix time of a commit; None if git does not know it."""
    shown = _git(
        root, "log", "-1", "--format=%H %ct", "--end-of-options", f"{name}^{{commit}}"
    )
    if not shown:
        return None
    commit, seconds = shown.decode().split()
    return commit, int(seconds)


def commits_between(root: Path, good: str, bad: str) -> list[str] | None:
    """Return the commits after one up to another, oldest first; None if git fails.

    Of a merge only the line of the branch that it was merged into is followed.
    """
    span = (f"{good}..{bad}", "--")
    listed = _git(
        root, "rev-list", "--first-parent", "--reverse", "--end-of-options", *span
    )
    return None if listed is None else listed.decode().split()


def content_in(root: Path, commit: str, file: Path) -> bytes | None:
    """Return what a file of the repository is in a commit; None if it is not there."""
    if not file.is_relative_to(root):
        return None
    inside = file.relative_to(root).as_posix()
    return _git(root, "cat-file", "--end-of-options", "blob", f"{commit}:{inside}")


def _from_git(root: Path) -> list[str] | None:
    listed = _git(root, *_LIST)
    if listed is None:
        return None
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _git(root: Path, *words: str) -> bytes | None:
    """Return what git prints; None if it cannot do it."""
    try:
        return subprocess.run(  # noqa: S603 - git itself, and the user's folder
            [*_GIT, "-C", str(root), *words],
            capture_output=True,
            timeout=_GIT_S,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _walked(root: Path) -> Iterator[str]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith(".") and name not in _NO_FOLDERS
        )
        for name in sorted(names):
            yield (Path(folder) / name).relative_to(root).as_posix()
