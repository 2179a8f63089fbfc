"""Functions that are called once the program has imported a module."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from collecting import module

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

after_import = module("agent.after_import")


def test_two_may_wait_for_the_same_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waited_for_twice.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[str] = []
    before = list(sys.meta_path)
    for name in ("first", "second"):
        after_import.AfterImport(
            "waited_for_twice", lambda name=name: called.append(name)
        ).wait()
    assert import_module("waited_for_twice").VALUE == 1
    assert sorted(called) == ["first", "second"]
    assert sys.meta_path == before
