"""Reading takes time in proportion to the text, whatever stands in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from traceq.errors import TraceqError
from traceq.formats import scan
from traceq.formats.chrome import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def _repeated(piece: str) -> Callable[[int], list[str]]:
    """Return what writes events of a piece that comes again and again."""
    return lambda size: [piece] * (size // len(piece))


def _around(before: str, piece: str, after: str = "") -> Callable[[int], list[str]]:
    """Return what writes one event with a long part of it."""
    return lambda size: [before + piece * (size // len(piece)) + after]


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


def _cpu_time(path: Path) -> float:
    """Return the least time of the processor that some readings took."""
    taken = []
    for _ in range(_TRIES):
        start = time.process_time()
        try:
            read(path)
        except TraceqError:
            pass
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["compiled", "pure"])
def test_eight_times_the_text_takes_about_eight_times_the_time(
    kind: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "pure":
        monkeypatch.setenv("TRACEQ_PURE", "1")
    elif not scan.available():
        pytest.skip("the scanner is not built")
    files = {}
    for size in (_SIZE, _SIZE * _TIMES):
        files[size] = tmp_path / f"{size}.json"
        events = [_GOOD, *KINDS[kind](size), _GOOD, _GOOD]
        files[size].write_text('{"traceEvents": [\n' + ",\n".join(events) + "\n]}")

    small, large = map(_cpu_time, files.values())

    assert large / small < _BOUND
