"""Sanitized memory snapshot, rewritten with only harmless content."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

from traceq.errors import InputError
from traceq.formats.pickles import read_pickle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from traceq.formats.sanitize.paths import Paths
    from traceq.formats.sanitize.regions import Regions

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
# Settings of the allocator; their names and values are words of torch.
_SETTING = re.compile(r"[a-z][a-z0-9_]{2,50}|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF|\d+")
_CONF = re.compile(
    r"(?:(?:backend|max_split_size_mb|max_non_split_rounding_mb|expandable_segments"
    r"|garbage_collection_threshold|roundup_power2_divisions|pinned_\w{1,40}"
    r"|release_lock_on_\w{1,20}|graph_capture_\w{1,40}|per_process_memory_fraction"
    r"|throw_on_cudamalloc_oom|use_\w{1,40})"
    r"\s*:\s*(?:True|False|native|cudaMallocAsync|[\d.]+|\[[\d:.,> ]*\])[,\s]*)*"
)
# Other allowed texts, by key.
_WORDS = {
    "segment_type": re.compile("small|large"),
    "state": re.compile(
        "inactive|active_allocated|active_pending_free|active_awaiting_free"
    ),
    "action": re.compile(
        "alloc|free|free_requested|free_completed|segment_alloc|segment_free"
        "|segment_map|segment_unmap|snapshot|oom|user_defined|annotate"
    ),
    "stage": re.compile("START|END"),
    "compile_context": re.compile(r"N/A|None|\d+/\d+(?:_\d+)?|"),
    "PYTORCH_CUDA_ALLOC_CONF": _CONF,
    "PYTORCH_HIP_ALLOC_CONF": _CONF,
    "PYTORCH_ALLOC_CONF": _CONF,
}


def clean_snapshot(path: Path, paths: Paths, regions: Regions) -> bytes:
    """Return a snapshot's content without what may be private, as a pickle.

    Raises ``InputError`` for a file that is not a snapshot.
    """
    content = read_pickle(path)[0]
    try:
        return pickle.dumps(_Cleaner(paths, regions).top(content), protocol=_PROTOCOL)
    except (AttributeError, LookupError, TypeError):
        msg = f"{path} is a pickle, but not a memory snapshot, and cannot be shrunk"
        raise InputError(msg) from None


class _Cleaner:
    """Rebuilds a snapshot; equal texts and equal frames are one object in it.

    Then the pickle names each of them once, and is the same whenever it is written.
    """

    def __init__(self, paths: Paths, regions: Regions) -> None:
        self._paths = paths
        self._regions = regions
        self._texts: dict[str, str] = {}
        self._frames: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._stacks: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def top(self, content: Any) -> Any:  # noqa: ANN401 - it is checked on the way
        """Return the sanitized content of the whole file."""
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
                made[key] = [[self._event(event) for event in entry] for entry in value]
            elif key == "external_annotations":
                made[key] = [self._entries(entry, _ANNOTATION) for entry in value]
            else:
                made[key] = self._settings(value)
        return made

    def _segment(self, segment: Mapping[str, Any]) -> dict[str, Any]:
        made = self._entries(segment, _SEGMENT) | self._stack(segment)
        made["blocks"] = [self._block(block) for block in segment["blocks"]]
        return made

    def _block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        made = self._entries(block, _BLOCK) | self._stack(block)
        if "history" in block:
            made["history"] = [
                self._entries(entry, _HISTORY) | self._stack(entry)
                for entry in block["history"]
            ]
        return made

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        return self._entries(event, _EVENT) | self._stack(event)

    def _stack(self, holder: Mapping[str, Any]) -> dict[str, Any]:
        if "frames" not in holder:
            return {}
        frames = [self._frame(frame) for frame in holder["frames"]]
        key = tuple(map(id, frames))
        return {self._text("frames"): self._stacks.setdefault(key, frames)}

    def _frame(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        file = self._paths.short(str(frame["filename"]))
        line = frame["line"] if isinstance(frame["line"], int) else 0
        place = (file, line, self._paths.text(str(frame["name"])))
        if place not in self._frames:
            keys = map(self._text, ("filename", "line", "name"))
            values = (self._text(file), line, self._text(place[2]))
            self._frames[place] = dict(zip(keys, values, strict=True))
        return self._frames[place]

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the allocator's settings, of which new ones may be added any time."""
        keys = {key for key in settings if _SETTING.fullmatch(str(key))}
        made = self._entries(
            settings, {key for key in keys if _is_word(key, settings[key])}
        )
        nested = "roundup_power2_divisions"
        if isinstance(settings.get(nested), dict):
            divisions = settings[nested]
            made[self._text(nested)] = self._entries(
                divisions, {key for key in divisions if str(key).isdigit()}
            )
        return {self._text(key): made[key] for key in settings if key in made}

    def _entries(self, entry: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
        """Return the entries with one of these keys, in the order of the file."""
        return {
            self._text(key): self._value(key, entry[key])
            for key in entry
            if key in keys
        }

    def _value(self, key: str, value: Any) -> Any:  # noqa: ANN401 - it is checked
        if key == "name":
            return self._text(self._regions.name(str(value)))
        if isinstance(value, str):
            return self._text(value if _is_word(key, value) else "")
        if isinstance(value, (tuple, list)):
            return value if all(isinstance(entry, int) for entry in value) else ()
        return value if isinstance(value, (int, float)) else None

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)


def _is_word(key: str, value: object) -> bool:
    """Return whether a text is one that torch writes there; numbers always are."""
    if isinstance(value, str):
        return key in _WORDS and bool(_WORDS[key].fullmatch(value))
    return isinstance(value, (int, float))
