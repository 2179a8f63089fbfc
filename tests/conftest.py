"""What the tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = sorted((ROOT / "fixtures").glob("*/trace.json.gz"))
SHARED = ROOT.parent / "shared" / "traces"


@pytest.fixture(autouse=True)
def _own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the tests out of the cache of whoever runs them, and it out of the tests."""
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path_factory.mktemp("cache")))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``fixture_trace`` and ``real_trace`` their files."""
    if "fixture_trace" in metafunc.fixturenames:
        names = [path.parent.name for path in FIXTURES]
        metafunc.parametrize("fixture_trace", FIXTURES, ids=names)
    if "real_trace" in metafunc.fixturenames:
        found = sorted(SHARED.rglob("*.json.gz"))
        reason = f"the folder of real traces is not at {SHARED}"
        absent = [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
        names = [path.name.split(".")[0] for path in found]
        metafunc.parametrize("real_trace", found or absent, ids=names or ["absent"])
