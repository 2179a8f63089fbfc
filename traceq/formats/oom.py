"""Reader of the files that ``traceq collect`` writes when memory runs out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from traceq.model.oom import Layers, Line, OpenModule, Optimizer, OutOfMemory

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 16 << 20
_MOST = 1_000
_MOST_BYTES = 1 << 50


def read_oom(file: Path, steps_after: object = 0) -> OutOfMemory | None:
    """Return the last failure in a file; none if the file cannot be read."""
    try:
        content = orjson.loads(
            file.read_bytes() if file.stat().st_size < _LARGEST else b""
        )
    except (OSError, orjson.JSONDecodeError):
        return None
    failures = _dicts(content.get("failures")) if isinstance(content, dict) else []
    if not failures:
        return None
    return _failure(failures[-1], _count(content.get("count")), _count(steps_after))


def _failure(entry: dict[str, Any], count: int, steps_after: int) -> OutOfMemory:
    models = _dicts(entry.get("models"))
    limit = _count(entry.get("limit_bytes"))
    return OutOfMemory(
        step=_count(entry.get("step")),
        requested=_count(entry.get("requested_bytes")),
        device_bytes=_count(entry.get("device_bytes")),
        limit=limit or None,
        phase=_text(entry.get("phase")),
        stack=tuple(
            Line(_text(item.get("file")), line, _text(item.get("function")))
            for item in _dicts(entry.get("stack"))
            if (line := _count(item.get("line")))
        ),
        modules=tuple(map(_module, _dicts(entry.get("modules")))),
        node=_text(entry.get("node")),
        parameter=_text(entry.get("parameter")),
        grad_enabled=entry.get("grad_enabled") is True,
        inputs=tuple(
            tuple(map(_count, group))
            for group in _list(entry.get("inputs"))
            if isinstance(group, list)
        ),
        trainable_bytes=sum(_count(model.get("trainable_bytes")) for model in models),
        layers=next(filter(None, map(_layers, models)), None),
        optimizers=tuple(map(_optimizer, _dicts(entry.get("optimizers")))),
        count=max(1, count),
        steps_after=steps_after,
    )


def _module(entry: dict[str, Any]) -> OpenModule:
    siblings = _count(entry.get("siblings"))
    return OpenModule(
        path=_text(entry.get("path")),
        kind=_text(entry.get("class")),
        training=entry.get("training") is True,
        input_bytes=_count(entry.get("input_bytes")),
        position=_count(entry.get("position")) if siblings else None,
        siblings=siblings or None,
    )


def _layers(model: dict[str, Any]) -> Layers | None:
    entry = model.get("repeated")
    if not isinstance(entry, dict):
        return None
    count = _count(entry.get("count"))
    kind = _text(entry.get("class"))
    return Layers(_text(entry.get("path")), kind, count) if count > 1 and kind else None


def _optimizer(entry: dict[str, Any]) -> Optimizer:
    return Optimizer(
        kind=_text(entry.get("class")),
        parameter_bytes=_count(entry.get("parameter_bytes")),
        state_bytes=_count(entry.get("state_bytes")),
        fused=entry.get("fused") is True,
    )


def _list(value: object) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST_BYTES else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
