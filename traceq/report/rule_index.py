"""Index of the rules, without importing the analyses that they use.

The list of traceq's own rules is parsed from their sources. Pages are made once from
the rules themselves, and stored in the user's cache directory, by the names, sizes and
times of all files that they depend on, so that a changed file never gets an old page. A
cache error never keeps a page from being made: the page is not stored then.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from traceq import __version__
from traceq.common.atomic_files import write_files
from traceq.common.locations import KEPT_PAGES, MEASURED, bundled, cache_directory
from traceq.common.words import rule_name
from traceq.errors import TraceqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_CLASS = re.compile(r'(\w+)\(\w+\):\n    """(.*)')
_CODE = re.compile(r'\n    code = "(\w+)"')
_MAX_CACHED = 8
# A file changed this shortly before it was read could change again unnoticed.
_UNSETTLED_NS = 2_000_000_000
_TROUBLE = (OSError, ValueError, TypeError, AttributeError, TraceqError)


class Card(NamedTuple):
    """A rule as the list and its page show it; it is asked as the rule is."""

    title: str
    sentence: str
    page: str = ""

    def name(self) -> str:
        """Return the rule's name."""
        return self.title

    def summary(self) -> str:
        """Return the first sentence of the rule's documentation."""
        return self.sentence


def listed(packs: Sequence[Path] = ()) -> Mapping[str, Card]:
    """Return all rules by code, with their names and what they find."""
    if packs:
        return whole(packs)
    cards = {}
    for path, _ in _sources(os.fspath(bundled("rules"))):
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - 90 of them
            parts = file.read().split("\nclass ")
        for part in parts[1:]:
            of_class, code = _CLASS.match(part), _CODE.search(part)
            if of_class and code:
                cards[code[1]] = Card(rule_name(of_class[1]), of_class[2])
    return dict(sorted(cards.items()))


def whole(packs: Sequence[Path] = ()) -> Mapping[str, Card]:
    """Return all rules by code, with their pages."""
    file, settled = None, False
    with suppress(*_TROUBLE):
        key, settled = _identity(packs)
        file = cache_directory() / KEPT_PAGES.replace("*", key)
        cached = orjson.loads(file.read_bytes())
        return {code: Card(*map(str, card)) for code, card in cached.items()}
    made = _made(packs)
    if file and settled:
        with suppress(*_TROUBLE):
            _store(file, made)
    return made


def _made(packs: Sequence[Path]) -> Mapping[str, Card]:
    from traceq.linter.pack import load_rules  # noqa: PLC0415 - it takes longest
    from traceq.report import rule_pages  # noqa: PLC0415

    return {
        code: Card(rule.name(), rule.summary(), rule_pages.page(rule))
        for code, rule in load_rules(packs).items()
    }


def _store(file: Path, made: Mapping[str, Card]) -> None:
    """Write what was made, in place of the oldest of other files."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cached = sorted(
        file.parent.glob(KEPT_PAGES), key=lambda path: path.stat().st_mtime_ns
    )
    for old in cached[: -_MAX_CACHED + 1]:
        old.unlink(missing_ok=True)
    cards = {code: list(card) for code, card in made.items()}
    write_files({file: orjson.dumps(cards)})


def _identity(packs: Iterable[Path]) -> tuple[str, bool]:
    """Return a digest of the files' metadata, and whether none changed just now."""
    digest = hashlib.sha256(__version__.encode())
    newest = 0
    for folder in (Path(__file__).parents[1], bundled("rules"), *packs):
        digest.update(b"\0" + os.fsencode(folder.resolve()))
        for path, status in sorted(_sources(os.fspath(folder), (".py", MEASURED))):
            one = f"\0{path}\0{status.st_size}\0{status.st_mtime_ns}"
            digest.update(os.fsencode(one))
            newest = max(newest, status.st_mtime_ns)
    return digest.hexdigest()[:32], time.time_ns() - newest > _UNSETTLED_NS


def _sources(
    folder: str, endings: tuple[str, ...] = (".py",)
) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(endings):
                yield entry.path, entry.stat()
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path, endings)
