"""A memory snapshot written again, with what is known to be harmless in it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from traceq.errors import InputError
from traceq.formats.pickles import read_pickle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from traceq.formats.sanitize.paths import Paths

_PROTOCOL = 4
_TOP = ("segments", "device_traces", "allocator_settings", "external_annotations")
_SEGMENT = {
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
}
_BLOCK = {"address", "size", "requested_size", "state"}
_HISTORY = {"addr", "real_size"}
_EVENT = {
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "device_free",
    "pool_id",
    "compile_context",
}
_ANNOTATION = {"stage", "name", "device", "time_us"}


def clean_snapshot(path: Path, paths: Paths) -> bytes:
    """Return a snapshot's content without what may be private, as a pickle.

    Raises ``InputError`` for a file that is not a snapshot.
    """
    content = read_pickle(path)[0]
    try:
        return pickle.dumps(_Cleaner(paths).top(content), protocol=_PROTOCOL)
    except (AttributeError, LookupError, TypeError):
        msg = f"{path} is a pickle, but not a memory snapshot, and cannot be shrunk"
        raise InputError(msg) from None


class _Cleaner:
    """Rebuilds a snapshot; equal texts and equal frames are one object in it.

    Then the pickle names each of them once, and is the same whenever it is written.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._texts: dict[str, str] = {}
        self._frames: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._stacks: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def top(self, content: Any) -> Any:  # noqa: ANN401 - it is checked on the way
        """Return what the whole file holds."""
        if isinstance(content, list):
            return [self._segment(segment) for segment in content]
        made: dict[str, Any] = {}
        for key in _TOP:
            if key not in content:
                continue
            value = content[key]
            if key == "segments":
                made[key] = [self._segment(segment) for segment in value]
            elif key == "device_traces":
                made[key] = [[self._event(event) for event in one] for one in value]
            elif key == "external_annotations":
                made[key] = [self._known(entry, _ANNOTATION) for entry in value]
            else:
                made[key] = self._known(value, set(value))
        return made

    def _segment(self, segment: Mapping[str, Any]) -> dict[str, Any]:
        made = self._known(segment, _SEGMENT) | self._stack(segment)
        made["blocks"] = [self._block(block) for block in segment["blocks"]]
        return made

    def _block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        made = self._known(block, _BLOCK) | self._stack(block)
        if "history" in block:
            made["history"] = [
                self._known(entry, _HISTORY) | self._stack(entry)
                for entry in block["history"]
            ]
        return made

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return self._known(event, _EVENT) | self._stack(event)

    def _stack(self, holder: Mapping[str, Any]) -> dict[str, Any]:
        if "frames" not in holder:
            return {}
        frames = [self._frame(frame) for frame in holder["frames"]]
        key = tuple(map(id, frames))
        return {self._text("frames"): self._stacks.setdefault(key, frames)}

    def _frame(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        file = self._paths.short(str(frame["filename"]))
        place = (file, frame["line"], str(frame["name"]))
        if place not in self._frames:
            keys = map(self._text, ("filename", "line", "name"))
            values = (self._text(file), frame["line"], self._text(place[2]))
            self._frames[place] = dict(zip(keys, values, strict=True))
        return self._frames[place]

    def _known(self, found: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
        """Return what is on a list, in the order of the file."""
        return {
            self._text(key): self._value(found[key]) for key in found if key in keys
        }

    def _value(self, value: Any) -> Any:  # noqa: ANN401 - numbers, texts, and pairs
        if isinstance(value, str):
            return self._text(self._paths.text(value))
        return value

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)
