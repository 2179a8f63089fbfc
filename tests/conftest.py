"""Shared fixtures and hooks of the tests."""

from __future__ import annotations

import gc
import os
from logging import CRITICAL
from typing import TYPE_CHECKING, Any

import pytest
from kinds_of_tests import left_out, mark, marks_of_file
from recordings import FIXTURE_TRACES, LEFT_OUT, ROOT, TRACES, WHOLE_TRACES, by_trace

from traceq.cache import store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Its asserts show what differs, as those of the tests do.
pytest.register_assert_rewrite("goldens")

__all__ = ["FIXTURES", "ROOT"]

FIXTURES = sorted((ROOT / "fixtures").glob("*/trace.json.gz"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests out of the cache of whoever runs them, and it out of the tests.

    All tests of a run share one, so that a trace is read once however many use it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEQ_CACHE", str(folder / "traces"))
        # What somebody trusts is not trusted in tests.
        patch.setenv("XDG_CONFIG_HOME", str(folder / "settings"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_to_compile() -> Iterator[None]:
    """Let programs that compile do so in half the time.

    Without vectors there is no trial of what the processor has, and the kernels are
    short; a pool of compilers would import torch again in each of its processes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        yield


@pytest.fixture(autouse=True)
def _kept_by_its_end() -> Iterator[None]:
    """Wait for the threads that keep tables, which would write into another cache."""
    yield
    store.finish()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test a cache of its own, empty at first; return its folder."""
    folder = tmp_path / "kept"
    monkeypatch.setenv("TRACEQ_CACHE", str(folder))
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """Note what `-m` leaves out, so that it need not be collected.

    What is collected stays: to look for garbage meanwhile is in vain.
    """
    gc.disable()
    LEFT_OUT.update(left_out(config.option.markexpr))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not import a file none of whose tests would run."""
    return True if LEFT_OUT & marks_of_file(collection_path) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests their files: those of fixtures, all whole ones, or all there are."""
    for name, files in (
        ("fixture_trace", FIXTURE_TRACES),
        ("whole_trace", WHOLE_TRACES),
        ("real_trace", TRACES),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, by_trace(files))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported and stays to the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a worker all tests of a recording, else of a file."""
    from groups import ByRecordingOrFile  # noqa: PLC0415 - there may be no xdist

    return ByRecordingOrFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark what is not quick.

    What takes longest comes first, so that no worker is left alone with it.
    """
    for item in items:
        mark(item)
    items.sort(key=lambda item: item.get_closest_marker("collect") is None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        # A port of its own: others run clusters beside this one.
        dashboard_address="127.0.0.1:0",
        silence_logs=CRITICAL,
    ) as running:
        yield running
