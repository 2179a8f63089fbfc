"""Large traces for the benchmarks, made of real ones.

A file is copies of real traces, one after the other: the same events, with times,
ids and step numbers moved so that no two copies share them. Nothing is invented. The
sources are in the layout of torch up to 2.11; for the other layouts that there are,
each event is written again as their writers do.
"""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_GAP_US = 1_000_000
_ID_SHIFT = 10_000_000
_EVENTS = re.compile(rb'"traceEvents": \[')
_END = re.compile(rb"\n\s*\],")
_TIME = re.compile(rb'"ts": (\d+)')
_STEP = re.compile(rb'"ProfilerStep#(\d+)"')
_NUMBER = re.compile(
    rb'"(ts|id|External id|correlation|Sequence number|Ev Idx|Python id'
    rb'|Python parent id)": (\d+)|"ProfilerStep#(\d+)"'
)


def _kineto_212(event: dict[str, Any]) -> str:
    """Write an event as Kineto from torch 2.12 on does: one key a line."""
    lines = ",\n    ".join(_pair(event, key) for key in event if key != "args")
    text = f"\n  {{\n    {lines}"
    if "args" in event:
        text += f'\n    ,\n    "args": {{\n      {_args(event)}\n    }}'
    return text + "\n  }"


def _python_exporter(event: dict[str, Any]) -> str:
    """Write an event as torch 2.13's Python exporter does: one event a line."""
    return "\n" + orjson.dumps(event).decode()


def _one_line(event: dict[str, Any]) -> str:
    """Write an event as json.dump does, all in one line."""
    pairs = ", ".join(_pair(event, key) for key in event if key != "args")
    args = f', "args": {{{_args(event)}}}' if "args" in event else ""
    return f"{{{pairs}{args}}}"


LAYOUTS: dict[str, tuple[Callable[[dict[str, Any]], str] | None, str]] = {
    "kineto-2.11": (None, ","),
    "kineto-2.12": (_kineto_212, ","),
    "python-2.13": (_python_exporter, ","),
    "one-line": (_one_line, ", "),
}


def _pair(event: dict[str, Any], key: str) -> str:
    value = event[key]
    text = f"{value:.3f}" if key in ("ts", "dur") else orjson.dumps(value).decode()
    return f'"{key}": {text}'


def _args(event: dict[str, Any]) -> str:
    pairs = (
        f'"{key}": ' + orjson.dumps(value).decode().replace(",", ", ")
        for key, value in event["args"].items()
    )
    return ", ".join(pairs)


def make(sources: list[Path], target: Path, size: int, layout: str) -> None:
    """Write a trace of at least ``size`` bytes in a layout."""
    write, comma = LAYOUTS[layout]
    parts = [_split(source) for source in sources]
    head, _, tail = parts[0]
    written = 0
    with target.open("wb") as file:
        file.write(head)
        for number, body in enumerate(_copies([body for _, body, _ in parts])):
            text = body
            if write is not None:
                events = orjson.loads(b"[" + body + b"]")
                text = comma.join(write(event) for event in events).encode()
            file.write(comma.encode() + text if number else text)
            written += len(text)
            if written > size:
                break
        file.write(tail)


def _split(source: Path) -> tuple[bytes, bytes, bytes]:
    """Split a trace into what stands before its events, the events, and the rest."""
    content = source.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    start = _EVENTS.search(content)
    end = list(_END.finditer(content))[-1]
    if start is None:
        msg = f"{source} is not a trace in Kineto's layout"
        raise ValueError(msg)
    return (
        content[: start.end()],
        content[start.end() : end.start()],
        content[end.start() :],
    )


def _copies(bodies: list[bytes]) -> Iterator[bytes]:
    """Yield the events of the sources over and over, each copy moved on."""
    end, ids, steps = 0, 0, 0
    while True:
        for body in bodies:
            times = [int(time) for time in _TIME.findall(body)]
            numbers = [int(step) for step in _STEP.findall(body)]
            shift = end - min(times) + _GAP_US if end else 0
            yield _moved(body, shift, ids, steps)
            end = max(times) + shift
            ids += _ID_SHIFT
            steps += max(numbers, default=0) + 1


def _moved(body: bytes, shift: int, ids: int, steps: int) -> bytes:
    def move(match: re.Match[bytes]) -> bytes:
        key, number, step = match.groups()
        if step is not None:
            return b'"ProfilerStep#%d"' % (int(step) + steps)
        return b'"%s": %d' % (key, int(number) + (shift if key == b"ts" else ids))

    return _NUMBER.sub(move, body)
