"""Work that a thread of ours has done in the program's main thread."""

from __future__ import annotations

import threading
import time

from collecting import module

main_thread = module("agent.main_thread")


def ask(
    work: object, seconds: float, after: float = 0.0
) -> tuple[threading.Thread, list[object]]:
    """Ask for work from a thread; return the thread, and what comes of it."""
    outcome: list[object] = []

    def run() -> None:
        time.sleep(after)
        try:
            outcome.append(main_thread.run(work, seconds))
        except ValueError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def run_python(until: threading.Thread) -> None:
    """Keep the main thread busy with Python until a thread has ended."""
    deadline = time.monotonic() + 20
    while until.is_alive() and time.monotonic() < deadline:
        sum(range(100))


def test_the_work_is_done_in_the_main_thread() -> None:
    seen: list[threading.Thread] = []
    thread, outcome = ask(lambda: seen.append(threading.current_thread()), 10.0)
    run_python(thread)
    assert seen == [threading.main_thread()]
    assert outcome == [True]


def test_a_main_thread_that_waits_is_not_waited_for() -> None:
    done: list[bool] = []
    thread, outcome = ask(lambda: done.append(True), 0.1, after=0.3)
    time.sleep(1.5)  # the main thread runs no Python meanwhile
    thread.join(10)
    assert outcome == [False]
    assert done == []


def test_an_error_is_raised_where_the_work_was_asked_for() -> None:
    def fail() -> None:
        msg = "mine"
        raise ValueError(msg)

    thread, outcome = ask(fail, 10.0)
    run_python(thread)
    assert [type(item) for item in outcome] == [ValueError]
