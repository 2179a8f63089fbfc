"""The rooms of collect/: a file's folder says which process it runs in."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from collecting import COLLECT

ALLOWED = {
    "launcher": {"launcher", "remedies", "shared"},
    "agent": {"agent", "shared"},
    "trial": {"trial", "agent", "remedies", "shared"},
    "remedies": {"remedies"},
    "shared": {"shared"},
    "inline": {"inline", "launcher", "agent", "shared"},  # both in one process
    "callbacks": {"callbacks", "inline"},
    "overhead": set[str](),  # a script that the launcher starts
    "bootstrap": set[str](),  # it is found by name, and mounts the rest
    "": set[str](),
}
WITH_TORCH = {"agent", "inline", "overhead", "trial", "remedies"}
FILES = sorted(file.relative_to(COLLECT) for file in COLLECT.rglob("*.py"))

each_file = pytest.mark.parametrize("file", FILES, ids=str)


def room_of(file: Path) -> str:
    return file.parts[0] if len(file.parts) > 1 else ""


def imports(file: Path) -> list[tuple[int, str]]:
    """Return the level and the dotted name of everything that a file imports."""
    result = []
    for node in ast.walk(
        ast.parse((COLLECT / file).read_text(), feature_version=(3, 9))
    ):
        if isinstance(node, ast.Import):
            result += [(0, name.name) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = (
                [name.name for name in node.names]
                if node.module is None
                else [node.module]
            )
            result += [(node.level, name) for name in names]
    return result


def rooms_used(file: Path) -> set[str]:
    """Return the rooms that a file's relative imports lead to."""
    own = room_of(file)
    used = set()
    for level, name in imports(file):
        if level == 1:
            used.add(own)
        elif level > 1:
            used.add(name.split(".")[0])
    return used


def test_every_file_is_in_a_room() -> None:
    assert {room_of(file) for file in FILES} == set(ALLOWED)
    assert [file.name for file in FILES if not room_of(file)] == ["__main__.py"]
    alone = [file.name for file in FILES if room_of(file) == "bootstrap"]
    assert alone == ["sitecustomize.py"]


@each_file
def test_launcher_and_agent_never_import_each_other(file: Path) -> None:
    assert rooms_used(file) <= ALLOWED[room_of(file)]


@each_file
def test_nothing_but_the_standard_library_and_torch_is_imported(file: Path) -> None:
    tops = {name.split(".")[0] for level, name in imports(file) if level == 0}
    allowed = {"torch", file.stem} if room_of(file) == "callbacks" else {"torch"}
    assert {top for top in tops if top not in sys.stdlib_module_names} <= allowed


@each_file
def test_the_launcher_does_not_import_torch(file: Path) -> None:
    tops = {name.split(".")[0] for level, name in imports(file) if level == 0}
    assert "torch" not in tops or room_of(file) in WITH_TORCH


def test_what_every_python_loads_does_not_import_torch() -> None:
    hook = {name for _, name in imports(Path("agent/hook.py"))}
    assert not {name for name in hook if name.startswith("torch")}


def test_what_is_known_of_remedies_needs_no_torch() -> None:
    known = [Path("remedies/__init__.py"), Path("remedies/base.py")]

    assert not {name for file in known for _, name in imports(file)} & {"torch"}
