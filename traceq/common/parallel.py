"""Run two independent functions in parallel.

Most steps of the linking keep a single core busy, and Polars lets go of Python.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

_A = TypeVar("_A")
_B = TypeVar("_B")


def run_both(one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
    """Return what both return."""
    if pl.thread_pool_size() == 1:
        return one(), other()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(other)
        return one(), second.result()
