"""The application: its errors, its exit statuses."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import nullcontext

from traceq.cli import interruption, output, shadow, streams
from traceq.cli.version import say_version
from traceq.errors import TraceqError

CANNOT_WORK = 2
# The disk, the user's share of it, or what a file may take is used up.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


def run() -> None:
    """Run the command line; exit 2 if traceq could not do its work."""
    try:
        _run()
    except TraceqError as error:
        output.say(str(error))
        sys.exit(CANNOT_WORK)
    except Exception as error:
        if interruption.came() or os.environ.get("TRACEQ_TRACEBACK"):
            raise
        output.say(_sentence(error))
        if warning := shadow.shadowed():
            output.say(warning)
        sys.exit(CANNOT_WORK)


def _run() -> None:
    words = sys.argv[1:]
    if words == ["--version"]:
        # Scripts ask for it often, and need not wait for anything else.
        say_version()
        return
    try:
        with output.working(words):
            from traceq.cli.dispatch import call

            status = call(words)
    finally:
        # Here, where an interruption is caught, and not when Python ends.
        _finish()
    if status:
        sys.exit(status)


def _finish() -> None:
    """Write what is to be kept, and remove what is not; nothing if nothing was read."""
    if cache := sys.modules.get("traceq.cache.store"):
        busy = cache.busy()
        with output.finishing("writing the cache") if busy else nullcontext():
            cache.finish()
    if temporary := sys.modules.get("traceq.inputs.temporary"):
        temporary.clean()


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _FULL:
        streams.discard(sys.stdout)
        return f"{error.filename or 'the output'} cannot be written: {error.strerror}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{error.filename or 'a file'} cannot be read: {error.strerror}"
    return (
        f"internal error, {type(error).__name__}: {error}; set TRACEQ_TRACEBACK=1"
        " for the traceback, and report it with the file if you can"
    )
