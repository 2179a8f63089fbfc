"""What the tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from traceq import cache

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = sorted((ROOT / "fixtures").glob("*/trace.json.gz"))
# Many more, where whoever runs the tests has them.
SHARED = ROOT.parent / "shared" / "traces"
REAL = FIXTURES + sorted(
    path for path in SHARED.rglob("*.json.gz") if not path.name.startswith("not_")
)


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
    if "fixture_trace" in metafunc.fixturenames:
        names = [path.parent.name for path in FIXTURES]
        metafunc.parametrize("fixture_trace", FIXTURES, ids=names)
    if "real_trace" in metafunc.fixturenames:
        metafunc.parametrize("real_trace", REAL, ids=[_name(path) for path in REAL])


def _name(path: Path) -> str:
    folder = path.parent
    return folder.name if folder.parent == ROOT / "fixtures" else path.name[:-8]
