"""Reading takes time in proportion to the text, whatever stands in it."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from traceq import native
from traceq.errors import TraceqError
from traceq.formats import scan
from traceq.formats.chrome import read
from traceq.formats.chunks import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

compiled = pytest.mark.skipif(not native.available(), reason="the scanner is not built")

_EVENT = (
    '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1, "ts": 4, "dur": 2,'
    ' "args": {%s}}'
)
_GOOD = _EVENT % ("aten::mm", "")
# Three times twice the text: eight times as long in linear time, 64 times in quadratic.
_TIMES = 8
_BOUND = 20.0
_SIZE = 1 << 18
_TRIES = 3


def _repeated(part: str) -> Callable[[int], list[str]]:
    """Return what writes events of a piece that comes again and again."""
    return lambda size: [part] * (size // len(part))


def _around(before: str, part: str, after: str = "") -> Callable[[int], list[str]]:
    """Return what writes one event with a long part of it."""
    return lambda size: [before + part * (size // len(part)) + after]


_NAME, _ARGS = (part.replace("%s", "") for part in _EVENT.split("%s", 1))
_OPEN = (_EVENT % ("aten::mm", '"x": ')).removesuffix("}}")
KINDS = {
    "escapes": _around(_OPEN + '"', r"\n", '"}}'),
    "escaped quotes": _around(_OPEN + '"', r"\"", '"}}'),
    "escapes that never end": _around(_OPEN + '"', r"\""),
    "events of escapes": _repeated(_OPEN + '"' + r"\n\"" * 50 + '"}}'),
    "events without times": _repeated('{"ph": "X"}'),
    "events without durations": _repeated('{"ph": "X", "ts": 4}'),
    "events without phases": _repeated('{"name": "aten::mm", "ts": 4}'),
    "deep lists": _around(_OPEN, "[", "}}"),
    "deep lists that end": lambda size: [
        _OPEN + "[" * (size // 2) + "]" * (size // 2) + "}}"
    ],
    "deep objects": _around(_OPEN, '{"x": ', "}}"),
    "events of deep lists": _repeated(_OPEN + "[" * 200 + "]" * 200 + "}}"),
    "lists of objects": _around(_OPEN + "[", '{"x": 1}, ', "1]}}"),
    "events with an object that never ends": _repeated(_OPEN + '[{"y": [1'),
    "long names": _around(_NAME, "a", _ARGS + "}}"),
    "many long names": lambda size: [
        _EVENT % (f"{number}{'a' * 5000}", "") for number in range(size // 5000)
    ],
    "names within names": _around(_NAME, '"name": "a", ', _ARGS + "}}"),
    "threads within names": _around(_NAME, 'a", "pid": 1, ', _ARGS + "}}"),
    "blanks between events": lambda size: [_GOOD + " " * size],
    "blanks within events": _around(_OPEN, " ", "1}}"),
    "blanks behind a name": _around(_NAME + 'a", "name":', "\n", '"b"' + _ARGS + "}}"),
    "blanks before a time": _around('{"ph": "X", "ts":', " ", "1}"),
    "braces": _around(_OPEN + '"', "}", '"}}'),
    "braces and brackets": _around(_OPEN + '"', "} ]", '"}}'),
    "digits": _around(_OPEN, "1", "}}"),
    "digits of a time": _around('{"ph": "X", "cat": "cpu_op", "ts": ', "1", "}"),
    "numbers": _around(_OPEN + "[", "1, ", "1]}}"),
    "keys": _around(_OPEN + '1, "External id": ', '1, "External id": ', "1}}"),
    "colons": _around(_OPEN + '"', ":", '"}}'),
    "keys of times": _around(_OPEN + "1", ', "ts": 1', "}}"),
}


def _text(kind: str, size: int) -> str:
    events = [_GOOD, *KINDS[kind](size), _GOOD, _GOOD]
    return '{"traceEvents": [\n' + ",\n".join(events) + "\n]}"


def _cpu_time(work: Callable[[], object]) -> float:
    """Return the least time of the processor that some tries took."""
    taken = []
    for _ in range(_TRIES):
        start = time.process_time()
        with suppress(TraceqError):
            work()
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["pure", pytest.param("compiled", marks=compiled)])
def test_eight_times_the_text_takes_about_eight_times_the_time(
    kind: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "pure":
        monkeypatch.setenv("TRACEQ_PURE", "1")
    files = [tmp_path / "small.json", tmp_path / "large.json"]
    for path, size in zip(files, (_SIZE, _SIZE * _TIMES), strict=True):
        path.write_text(_text(kind, size))

    small, large = (_cpu_time(partial(read, path)) for path in files)

    assert large / small < _BOUND


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_scanner_alone_takes_eight_times_the_time_too(kind: str) -> None:
    """Beside what Python does with what it leaves, its own time may not show."""
    texts = [_text(kind, size).encode() for size in (_SIZE, _SIZE * _TIMES)]
    first = texts[0].index(b'ph"')
    # Less than this is within the noise of the clock.
    least = 5e-4

    small, large = (
        _cpu_time(partial(scan.Scan(layout_of(text)).feed, text, first, len(text)))
        for text in texts
    )

    assert large / max(small, least) < _BOUND


@compiled
def test_a_signal_ends_a_scan_in_the_middle() -> None:
    class _InterruptedError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise _InterruptedError

    text = b'ph": "X"},\n{"' * 4_000_000
    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
    try:
        with pytest.raises(_InterruptedError):
            scan.Scan(layout_of(b"{" + text[:1000])).feed(text, 0, len(text))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
