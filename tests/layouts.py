"""The ways in which traces are written, for tests that hold for all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]
TIMES = ("ts", "dur")


def timed(  # noqa: PLR0913 - an event has this many parts
    name: str,
    ts: float,
    dur: float,
    *,
    cat: str = "cpu_op",
    pid: object = 1,
    tid: object = 1,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an event as the profiler writes it, an op unless told otherwise."""
    head = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return head | {"ts": ts, "dur": dur, "args": args or {}}


def _kineto_211(document: Document) -> str:
    def write(event: dict[str, Any]) -> str:
        order = ("ph", "cat", "name", "pid", "tid", "id", "bp", "s")
        head = ", ".join(
            f'"{key}": {json.dumps(event[key])}' for key in order if key in event
        )
        times = ", ".join(
            f'"{key}": {_number(event[key])}' for key in TIMES if key in event
        )
        text = f"  {{\n    {head},\n    {times}"
        if "args" in event:
            pairs = json.dumps(event["args"])[1:-1]
            text += f',\n    "args": {{\n      {pairs}\n    }}'
        return text + "\n  }"

    events = ",\n".join(write(event) for event in document["traceEvents"])
    return "\n" + _around(document, f"[\n{events}\n  ]")


def _kineto_212(document: Document) -> str:
    def write(event: dict[str, Any]) -> str:
        lines = [
            f'    "{key}": {_number(value) if key in TIMES else json.dumps(value)}'
            for key, value in event.items()
            if key != "args"
        ]
        text = "  {\n" + ",\n".join(lines) + "\n"
        if "args" in event:
            pairs = json.dumps(event["args"])[1:-1]
            text += f'    ,\n    "args": {{\n      {pairs}\n    }}\n'
        return text + "  }"

    events = ",\n".join(write(event) for event in document["traceEvents"])
    return " " + _around(document, f"[\n    \n{events}\n  ]")


def _python_exporter(document: Document) -> str:
    events = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in document["traceEvents"]
    )
    return _around(document, f"[\n{events}\n]")


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _around(document: Document, events: str) -> str:
    head = json.dumps(
        {key: value for key, value in document.items() if key != "traceEvents"}
    )
    comma = ", " if len(head) > len("{}") else ""
    return f'{head[:-1]}{comma}"traceEvents": {events},\n"traceName": "x.json"\n}}'


def _reordered(document: Document) -> str:
    return json.dumps(document, sort_keys=True)


LAYOUTS: dict[str, Callable[[Document], str]] = {
    "kineto-2.11": _kineto_211,
    "kineto-2.12": _kineto_212,
    "python-2.13": _python_exporter,
    "one-line": json.dumps,
    "compact": lambda document: json.dumps(document, separators=(",", ":")),
    "indented": lambda document: json.dumps(document, indent=2),
    "tabs": lambda document: json.dumps(document, indent="\t"),
    "sorted-keys": _reordered,
    "bare-list": lambda document: json.dumps(document["traceEvents"]),
    "byte-order-mark": lambda document: "\ufeff" + json.dumps(document),
    "carriage-returns": lambda document: _kineto_211(document).replace("\n", "\r\n"),
}
