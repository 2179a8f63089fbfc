"""Allocator settings: memory is freed to the system soon, unless the user set them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from traceq.cli import malloc

if TYPE_CHECKING:
    import pytest

POLARS = "_RJEM_MALLOC_CONF"


def test_what_a_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLARS, "narenas:4")

    malloc.free_soon()

    assert os.environ[POLARS] == "narenas:4"


def test_polars_is_told_where_nothing_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLARS, "")
    monkeypatch.delenv(POLARS)

    malloc.free_soon()

    assert "dirty_decay_ms" in os.environ[POLARS]
