"""A job read by other processes: the same report, byte for byte, wherever it ran."""

from __future__ import annotations

import os
import shutil
import threading
import time
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest
import recordings
from command import traceq

from traceq.inputs.options import LoadOptions
from traceq.ranks import gather as gathering
from traceq.ranks.digest import TABLES
from traceq.ranks.executors import local
from traceq.ranks.executors.local import Workers
from traceq.ranks.gather import InProcess, digest_tasks, gather, local_executor

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from command import Answer

pytestmark = pytest.mark.slow


def test_processes_return_the_digests_that_this_one_makes() -> None:
    tasks = digest_tasks(
        [(path, None) for path in recordings.job("torchrec_a2a")], LoadOptions()
    )
    here, _ = gather(tasks, InProcess())
    with Workers(2) as workers:
        there, _ = gather(tasks, workers)
    for digest, other in zip(here, there, strict=True):
        assert digest.rank == other.rank
        assert all(digest.table(name).equals(other.table(name)) for name in TABLES)


FORMATS = ("text", "json", "markdown", "html")


def _reports(paths: list[Path], *options: str) -> dict[str, Answer]:
    return {
        form: traceq("ranks", *paths, "--no-cache", "--format", form, *options)
        for form in FORMATS
    }


def _kill_a_busy_worker(cluster: Any, killed: list[int]) -> None:  # noqa: ANN401 - Dask has no types
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = dict(cluster.scheduler.workers)
        for worker in cluster.workers.values():
            state = states.get(worker.worker_address)
            if state is not None and state.processing:
                os.kill(worker.pid, SIGKILL)
                killed.append(worker.pid)
                return
        time.sleep(0.005)


def test_processes_and_a_cluster_that_loses_a_worker_print_the_same_bytes(
    cluster: Any,  # noqa: ANN401 - Dask has no types
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = recordings.job("torchrec_a2a")
    here = _reports(paths)
    # These traces are small, so that processes would not be started for them.
    with monkeypatch.context() as small:
        small.setattr(gathering, "_SMALL", 0)
        small.setattr(local, "cores", lambda: 2)
        tasks = digest_tasks([(path, None) for path in paths], LoadOptions())
        assert isinstance(local_executor(tasks), Workers)
        pool = _reports(paths)
    killed: list[int] = []
    killer = threading.Thread(target=_kill_a_busy_worker, args=(cluster, killed))
    killer.start()
    on_cluster = _reports(paths, "--on", cluster.scheduler_address)
    killer.join()
    assert killed
    assert {answer.err for answer in (*pool.values(), *on_cluster.values())} == {""}
    assert pool == on_cluster
    assert here == pool


def test_a_rank_that_cannot_be_read_is_named_and_the_others_are_compared(
    tmp_path: Path,
) -> None:
    for path in recordings.job("torchrec_a2a"):
        shutil.copy(path, tmp_path)
    broken = min(tmp_path.iterdir())
    broken.write_bytes(b'{"traceEvents": 3}')
    tasks = digest_tasks(
        [(path, None) for path in sorted(tmp_path.iterdir())], LoadOptions()
    )
    with Workers(2) as workers:
        digests, unread = gather(tasks, workers)
    assert len(digests) == 3
    assert [item.path for item in unread] == [str(broken)]


def test_paths_are_shown_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in recordings.job("resnet18"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    answer = traceq(
        "ranks", *sorted(item.name for item in tmp_path.iterdir()), "--format", "json"
    )
    assert str(tmp_path) not in answer.out


def test_a_scheduler_that_is_not_there_ends_in_a_sentence() -> None:
    pytest.importorskip("distributed")
    answer = traceq("ranks", *recordings.job("resnet18"), "--on", "tcp://127.0.0.1:1")
    assert answer.status == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in answer.err
