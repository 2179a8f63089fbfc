"""The workers of a Dask cluster, through its scheduler: the extra ``fleet``."""

from __future__ import annotations

import contextlib
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import traceq
from traceq.errors import InstallError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

_SECONDS = 10


@contextlib.contextmanager
def connect(address: str) -> Iterator[Executor]:
    """Yield an executor that runs tasks on a cluster; they are cancelled at an error.

    A task whose worker died runs again on another one, up to Dask's own limit.
    """
    client = _client(address)
    try:
        _check_versions(client, address)
        # Not pure: a task reads a file, which may have changed since Dask last did.
        executor = client.get_executor(pure=False)
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False)
            raise
    finally:
        client.close()


def version() -> str:
    """Return the version of traceq where this runs."""
    return traceq.__version__


def _client(address: str) -> Any:  # noqa: ANN401 - Dask has no types
    try:
        distributed = import_module("distributed")  # an extra
    except ImportError as error:
        msg = "--on needs Dask: pip install 'torch-traceq[fleet]'"
        raise InstallError(msg) from error
    try:
        _reach(address)
        return distributed.Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        msg = (
            f"no Dask scheduler answers at {address}: start one with `dask scheduler`,"
            " and give its address, as tcp://host:8786"
        )
        raise UsageError(msg) from error


def _reach(address: str) -> None:
    """Raise if nothing listens there: Dask's client would keep trying, and log it."""
    place = urlsplit(address)
    if place.scheme not in ("tcp", "tls") or not place.hostname or not place.port:
        raise ValueError(address)
    socket.create_connection((place.hostname, place.port), _SECONDS).close()


def _check_versions(client: Any, address: str) -> None:  # noqa: ANN401
    """Refuse workers that would read the files with another traceq, or without one."""
    replies = client.run(version, on_error="return")
    if not replies:
        msg = f"the Dask scheduler at {address} has no workers: start some"
        raise UsageError(msg)
    for worker, reply in replies.items():
        if reply != traceq.__version__:
            what = "none" if isinstance(reply, Exception) else reply
            msg = (
                f"the worker {worker} needs traceq {traceq.__version__}, as here, and"
                f" has {what}: install it there"
            )
            raise UsageError(msg)
