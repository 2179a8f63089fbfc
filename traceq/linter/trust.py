"""Trust in rule packs: they are Python, and a configuration may name any.

A pack that is named on the command line runs. One that a configuration names, which may
be a stranger's, runs only if the user has trusted its content before: ``traceq rules
--trust FOLDER`` keeps a digest of all files of the pack in the user's settings.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.common.atomic_files import write_folder
from traceq.common.locations import config_directory
from traceq.common.progress import notify
from traceq.common.safe_text import printable
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from traceq.linter.config import Config

_TRUSTED = "trusted"
# Python compiles a pack from its sources, whatever lies there.
_NOT_READ = "__pycache__"
# A pack is a folder of small files. Whatever is larger is none, as where a stranger's
# configuration names the root of the disk.
_MOST_FILES = 2_000
_MOST_BYTES = 64 << 20


def with_trusted_packs(config: Config) -> Config:
    """Return a configuration without the packs that the user has not trusted.

    One sentence says what was not loaded.
    """
    trusted = tuple(pack for pack in config.packs if is_trusted(pack))
    left = [pack for pack in config.packs if pack not in trusted]
    if not left:
        return config
    names = ", ".join(printable(str(_shown(pack))) for pack in left)
    notify(
        f"rules in {names} were not loaded: {config.file} names them, and nobody has"
        " trusted them as they are now; to run them, read them, then traceq rules"
        " --trust FOLDER, or give --rules FOLDER"
    )
    return structs.replace(config, packs=trusted)


def is_trusted(pack: Path) -> bool:
    """Return whether the user has trusted a pack with exactly these files."""
    with suppress(OSError, UsageError):
        folder = config_directory() / _TRUSTED
        # Nobody waits for a digest who has never trusted anything.
        return folder.is_dir() and (folder / _digest(pack)).is_file()
    return False


def trust(pack: Path) -> int:
    """Let a pack run wherever a configuration names it; return how many files it has.

    It is trusted as it is now: once any of its files changes, it is not.
    """
    if not pack.is_dir():
        msg = f"{pack} is not a rule pack: a pack is a folder of Python files"
        raise UsageError(msg)
    try:
        name, count = _digest(pack), sum(1 for _ in _files(pack))
    except OSError as error:
        msg = f"{pack} cannot be read: {error.strerror or error}"
        raise UsageError(msg) from None
    place = str(pack.resolve()).encode(errors="surrogateescape")
    write_folder(config_directory() / _TRUSTED, {name: place + b"\n"})
    return count


def named(packs: Iterable[Path]) -> str:
    r"""Return the first line of a report, which names the packs that ran; or nothing.

    >>> named([Path("ci/rules")])
    'with rules of ci/rules\n'
    """
    names = ", ".join(printable(str(_shown(pack))) for pack in packs)
    return f"with rules of {names}\n" if names else ""


def _shown(pack: Path) -> Path:
    here = Path.cwd()
    return pack.relative_to(here) if pack.is_relative_to(here) else pack


def _digest(pack: Path) -> str:
    """Return a digest of all names and bytes of a pack."""
    digest = hashlib.sha256()
    left = _MOST_BYTES
    for file in sorted(_files(pack)):
        content = file.read_bytes()
        left -= len(content)
        if left < 0:
            raise UsageError(_too_large(pack))
        name = str(file.relative_to(pack)).encode(errors="surrogateescape")
        for part in (name, content):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _files(pack: Path) -> Iterator[Path]:
    """Yield all files that Python may import from a pack, in linked folders too."""
    count = 0
    for place, below, names in os.walk(pack, followlinks=True):
        below[:] = [item for item in below if item != _NOT_READ]
        for name in names:
            file = Path(place, name)
            if file.is_file():
                count += 1
                yield file
        if count + len(below) > _MOST_FILES:
            raise UsageError(_too_large(pack))


def _too_large(pack: Path) -> str:
    return (
        f"{pack} is too large for a rule pack, which has at most {_MOST_FILES:,} files"
        f" of {_MOST_BYTES >> 20} MiB in all"
    )
