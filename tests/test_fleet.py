"""Tasks on processes of this machine and on a Dask cluster: what came of each."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from signal import SIGKILL
from socket import socket
from typing import TYPE_CHECKING, Any

import fleeting
import pytest

import traceq
from traceq.errors import InstallError, UsageError
from traceq.ranks.executors import dask, local
from traceq.ranks.executors.local import Workers
from traceq.ranks.executors.tasks import Failed, Task, WorkerDiedError, run_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future
    from pathlib import Path

pytestmark = pytest.mark.slow


def numbers(texts: list[str]) -> list[Task]:
    return [Task(text, (text,), size) for size, text in enumerate(texts)]


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with Workers(2) as executor:
        yield executor


def test_results_have_the_order_of_the_tasks(workers: Executor) -> None:
    assert run_all(workers, int, numbers(["3", "1", "2"])) == [3, 1, 2]


def test_the_largest_tasks_are_begun_first() -> None:
    begun: list[str] = []
    with ThreadPoolExecutor(1) as one:
        run_all(one, begun.append, numbers(["small", "larger", "largest"]))
    assert begun == ["largest", "larger", "small"]


def test_tasks_run_in_other_processes_that_stay(workers: Executor) -> None:
    pids = run_all(workers, os.getpid, [Task(str(index), ()) for index in range(8)])
    assert os.getpid() not in pids
    assert len(set(pids)) <= 2


def test_a_task_that_fails_is_named_and_the_others_have_results(
    workers: Executor,
) -> None:
    result = run_all(workers, int, numbers(["1", "x", "3"]))
    assert result[0] == 1
    assert result[2] == 3
    failed = result[1]
    assert isinstance(failed, Failed)
    assert failed.name == "x"
    assert "ValueError" in failed.why


def test_a_sentence_of_traceq_is_passed_on_as_it_is(
    workers: Executor, tmp_path: Path
) -> None:
    (tmp_path / "no.json").write_text("{")
    (failed,) = run_all(
        workers, traceq.load, [Task("no.json", (tmp_path / "no.json",))]
    )
    assert isinstance(failed, Failed)
    assert "no.json" in failed.why
    assert "crashed" not in failed.why


def test_a_process_that_dies_costs_the_task_that_kills_it(workers: Executor) -> None:
    killers = [Task("killer", (9,))]
    harmless = [Task("harmless", ())]
    with ThreadPoolExecutor(2) as both:
        first = both.submit(run_all, workers, os._exit, killers)
        second = both.submit(run_all, workers, os.getpid, harmless * 4)
    (failed,) = first.result()
    assert isinstance(failed, Failed)
    assert failed.name == "killer"
    assert "died" in failed.why
    assert not any(isinstance(number, Failed) for number in second.result())


def test_a_task_whose_process_died_runs_once_more(
    workers: Executor, tmp_path: Path
) -> None:
    task = Task("dies once", (str(tmp_path / "died"),))
    assert run_all(workers, fleeting.die_once, [task]) == ["the second time"]


def test_an_exception_that_cannot_be_sent_is_told(workers: Executor) -> None:
    (failed,) = run_all(workers, fleeting.raise_what_cannot_be_sent, [Task("it", ())])
    assert isinstance(failed, Failed)
    assert "Local" in failed.why


def test_an_error_ends_processes_that_are_at_work() -> None:
    def interrupted() -> None:
        with Workers(1) as one:
            futures.append(one.submit(time.sleep, 60))
            raise KeyboardInterrupt

    futures: list[Future[None]] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert isinstance(futures[0].exception(timeout=10), WorkerDiedError)


def test_what_a_task_prints_does_not_disturb(workers: Executor) -> None:
    assert run_all(workers, print, [Task("words", ("words",))]) == [None]


def test_progress_counts_tasks(workers: Executor) -> None:
    seen: list[tuple[int, int]] = []
    run_all(workers, int, numbers(["1", "2"]), lambda *counts: seen.append(counts))
    assert seen == [(1, 2), (2, 2)]


def test_there_are_no_more_processes_than_files_and_cores() -> None:
    assert local.workers_for([1]) == 1
    assert local.workers_for([1] * 1000) <= local.cores()


def test_there_are_no_more_processes_than_memory_is_free_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "cores", lambda: 64)
    monkeypatch.setattr(local, "free_memory", lambda: 5 << 30)
    assert local.workers_for([400 << 20] * 64) == 2
    assert local.workers_for([1 << 40] * 64) == 1


class TestDask:
    """A cluster that is there, and those that are not."""

    def test_tasks_run_on_its_workers_in_order(self, cluster: Any) -> None:  # noqa: ANN401
        with dask.connect(cluster.scheduler_address) as executor:
            assert run_all(executor, int, numbers(["3", "1", "x"]))[:2] == [3, 1]
            pids = run_all(executor, os.getpid, [Task("pid", ())] * 6)
        assert set(pids) <= {worker.pid for worker in cluster.workers.values()}

    def test_the_tasks_of_a_worker_that_is_killed_run_on_another(
        self,
        cluster: Any,  # noqa: ANN401
    ) -> None:
        with dask.connect(cluster.scheduler_address) as executor:
            (pid,) = run_all(executor, os.getpid, [Task("pid", ())])
            threading.Timer(0.3, os.kill, (pid, SIGKILL)).start()
            result = run_all(executor, time.sleep, [Task("sleep", (0.2,))] * 10)
        assert result == [None] * 10

    def test_a_place_where_nobody_listens_is_told_at_once(self) -> None:
        pytest.importorskip("distributed")
        with socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            with (
                pytest.raises(UsageError, match="no Dask scheduler answers"),
                dask.connect(address),
            ):
                pass

    @pytest.mark.parametrize("address", ["host", "http://host:8786", "tcp://host"])
    def test_what_is_no_address_is_told(self, address: str) -> None:
        pytest.importorskip("distributed")
        with (
            pytest.raises(UsageError, match="tcp://host:8786"),
            dask.connect(address),
        ):
            pass

    def test_another_version_on_the_workers_is_refused(
        self,
        cluster: Any,  # noqa: ANN401
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(traceq, "__version__", "99.0")
        with (
            pytest.raises(UsageError, match=r"needs traceq 99\.0"),
            dask.connect(cluster.scheduler_address),
        ):
            pass


@pytest.mark.skipif(find_spec("distributed") is not None, reason="Dask is installed")
def test_without_dask_the_extra_is_named() -> None:
    with pytest.raises(InstallError, match="fleet"), dask.connect("tcp://host:1"):
        pass
