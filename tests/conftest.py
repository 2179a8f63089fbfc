"""What the tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recordings import FIXTURE_TRACES, ROOT, TRACES

from traceq import cache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Its asserts show what differs, as those of the tests do.
pytest.register_assert_rewrite("goldens")

__all__ = ["FIXTURES", "ROOT"]

FIXTURES = sorted((ROOT / "fixtures").glob("*/trace.json.gz"))


@pytest.fixture(autouse=True)
def _own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Keep the tests out of the cache of whoever runs them, and it out of the tests."""
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    # Tables are kept by a thread of their own, which may still be at it and would
    # write into the next test's cache.
    cache.finish()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``fixture_trace`` and ``real_trace`` their files."""
    for name, files in (("fixture_trace", FIXTURE_TRACES), ("real_trace", TRACES)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, _by_trace(files))


def _by_trace(files: Mapping[str, Path]) -> list[object]:
    """Return a parameter for each file; one worker gets all tests of a file."""
    return [
        pytest.param(path, id=name, marks=pytest.mark.xdist_group(name))
        for name, path in files.items()
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for workers: those of one trace, else those of one file.

    What takes longest comes first, so that no worker is left alone with it.
    """
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.get_closest_marker("collect") is None)
