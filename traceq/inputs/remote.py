"""Remote files, read through fsspec because a user typed their URL.

A fetched file stays in the cache until it changes remotely; a URL that may contain a
secret is neither stored nor printed whole.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.cache import store
from traceq.errors import InputError, UsageError
from traceq.inputs.display_path import DisplayPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from traceq.inputs.display_path import Url

MOST_BYTES = 64 << 30
"""Largest file that is fetched, in bytes."""
_BLOCK = 4 << 20
_LONGEST_NAME = 100
_SILENCE_S = 60
# What tells one content of a URL from the next, as file systems call it.
_VERSIONS = ("ETag", "etag", "md5Hash", "version_id", "generation", "Content-MD5")
_TIMES = (
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
    "mtime",
    "created",
)


def fetched(
    path: Url,
    stash: Callable[[], Path],
    *,
    keep: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Return a local copy of what a URL names, in the cache or in a stash.

    It is cached if it is to be kept and has a version or a time to be known by.
    Raises ``InputError`` with the reason if it cannot be fetched.
    """
    try:
        system, name = _opened(path)
        info = _info(path, system, name)
        place = (_place(path, info) if keep else None) or stash() / _name(path)
        if not place.is_file():
            _copy(path, _blocks(system, name), place, info.get("size"), progress)
    except (InputError, UsageError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - every file system has its own
        msg = f"{path} cannot be fetched: {_why(error)}"
        # Without its cause, whose text may have the whole URL.
        raise InputError(msg) from None
    with suppress(OSError):
        os.utime(place.parent)
    return DisplayPath.of(place, str(path))


def _opened(path: Url) -> tuple[Any, str]:
    """Return the file system of a URL, and what the URL is called there."""
    try:
        core: Any = importlib.import_module("fsspec.core")  # an extra
    except ImportError:
        msg = f"{path} is on another machine: pip install 'torch-traceq[remote]'"
        raise UsageError(msg) from None
    options: dict[str, Any] = {}
    if path.url.lower().startswith(("http:", "https:")):
        options = _http_options()
    try:
        system, name = core.url_to_fs(path.url, **options)
    except ImportError as error:
        msg = f"{path} needs another package: {str(error).splitlines()[0]}"
        raise UsageError(msg) from None
    except ValueError:
        msg = f"{path} cannot be fetched: fsspec does not know such an address"
        raise UsageError(msg) from None
    return system, name


def _info(path: Url, system: Any, name: str) -> dict[str, Any]:  # noqa: ANN401
    info: dict[str, Any] = system.info(name)
    if info.get("type") == "directory":
        msg = f"{path} is a folder: give a file in it"
        raise InputError(msg)
    return info


def _http_options() -> dict[str, Any]:
    """Return how HTTP is spoken: addresses as typed, proxies of the environment."""
    client: dict[str, Any] = {"trust_env": True}
    with suppress(ImportError):
        aiohttp: Any = importlib.import_module("aiohttp")
        # A large file may take long, as long as it comes.
        client["timeout"] = aiohttp.ClientTimeout(
            total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S
        )
    return {"encoded": True, "client_kwargs": client}


def _name(path: Url) -> str:
    return re.sub(r"[^\w.-]", "_", path.name)[-_LONGEST_NAME:].lstrip(".") or "input"


def _place(path: Url, info: dict[str, Any]) -> Path | None:
    """Return where the cache has this content, or will; none if it cannot be known."""
    size = info.get("size")
    version = [str(info[key]) for key in (*_VERSIONS, *_TIMES) if info.get(key)]
    if not version or not isinstance(size, int) or size > store.size_limit():
        return None
    digest = hashlib.sha256("\0".join((path.url, str(size), *version)).encode())
    return store.fetched_folder() / digest.hexdigest() / _name(path)


def _blocks(system: Any, name: str) -> Iterator[bytes]:  # noqa: ANN401 - fsspec's
    # Of HTTP, one answer from the beginning to the end, not one for each block.
    whole = {"block_size": 0} if "http" in system.protocol else {}
    with system.open(name, "rb", **whole) as file:
        while block := file.read(_BLOCK):
            yield block


def _copy(
    path: Url,
    blocks: Iterator[bytes],
    place: Path,
    size: int | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write a copy whole, or nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    most = min(MOST_BYTES, shutil.disk_usage(place.parent).free)
    done = 0
    handle, partial = tempfile.mkstemp(dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for block in blocks:
                done += len(block)
                if done > most:
                    msg = (
                        f"{path} is larger than the {most >> 30} GiB there is room for"
                    )
                    raise InputError(msg)
                file.write(block)
                if progress:
                    progress(done, size or 0)
        if size is not None and done != size:
            msg = f"{path} came incomplete, {done:,} bytes of {size:,}: try again"
            raise InputError(msg)
        Path(partial).replace(place)
    finally:
        Path(partial).unlink(missing_ok=True)
    store.make_room()


def _why(error: BaseException) -> str:
    """Say what went wrong, in words that hold nothing of the URL."""
    cause: BaseException | None = error
    while cause is not None:
        status = getattr(cause, "status", None)
        if isinstance(status, int):
            return f"the server answers {status}"
        cause = cause.__cause__
    if isinstance(error, FileNotFoundError):
        return "it does not exist, or the server cannot be reached"
    if isinstance(error, PermissionError):
        return "it may not be read: check the credentials"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
