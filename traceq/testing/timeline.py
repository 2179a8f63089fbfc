"""Traces drawn as text: the picture is the test.

One line is one lane, one character is one microsecond, and a span runs from its
``[`` to its ``]``::

    host     [ProfilerStep#1                          ]
    host      [train.py(3): main                     ]
    host       [aten::mm           ] [aten::item    ]
    host        [cudaLaunchKernel>1]
    gpu 7                      [gemm<1             ]

``host`` is a thread, ``host 2`` another one; ``gpu 7`` is stream 7 of the GPU.
``>1`` after a call and ``<1`` after a kernel tie the two together. What a span is
follows from its name; ``@name`` makes it a region of record_function. Where the last
span lacks its ``]``, the file ends in the middle of it.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.trace import Trace

_SPAN = re.compile(r"\[([^\]]*)\]")
_UNFINISHED = re.compile(r"\[[^\]]*\Z")
_TIE = re.compile(r"\s*[<>](\d+)\s*$")
_PID = 1000
_REGION = re.compile(r"@|ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#")
_CALL = re.compile(r"(cuda|cu|hip)[A-Z]")
_PYTHON = re.compile(r".*\(\d+\): |nn\.Module: |<built-in")


def draw(
    text: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    device: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the Chrome trace that a drawing shows; ``args`` are by span name.

    ``job`` is which rank of which job it is, as torch writes it.
    """
    closed = text.rstrip() + "]" * bool(_UNFINISHED.search(text))
    lines = [line for line in closed.splitlines() if "[" in line]
    for line in lines:
        _check_brackets(line)
    origin = min(line.index("[") for line in lines)
    events = [
        _event(line[:origin].strip(), span, origin, args or {})
        for line in lines
        for span in _SPAN.finditer(line)
    ]
    head: dict[str, Any] = {"schemaVersion": 1}
    head |= {"deviceProperties": [device]} if device else {}
    head |= {"distributedInfo": dict(job)} if job else {}
    return head | {"traceEvents": events}


_BY = " by "  # before the caller of a Python call or an op, as collect writes it


def load_drawn(
    text: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    device: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
) -> Trace:
    """Return a drawing as a trace, through the reader that reads real ones."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.json"
        written = json.dumps(draw(text, args, device, job))
        if _UNFINISHED.search(text):
            written = written[: written.rindex('"ts"')]
        path.write_text(written, encoding="utf-8")
        return load(path, cache=False)


def _check_brackets(line: str) -> None:
    """Refuse a line with a span that is never closed, or never opened."""
    spans = [span[1] for span in _SPAN.finditer(line)]
    rest = _SPAN.sub("", line)
    if any("[" in name for name in spans) or "[" in rest or "]" in rest:
        msg = f"a bracket is not closed, or not opened, in the drawn line: {line}"
        raise ValueError(msg)


def _event(
    lane: str, span: re.Match[str], origin: int, args: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    label = span[1].strip()
    tie = _TIE.search(label)
    name = label[: tie.start()] if tie else label
    kind, _, number = lane.partition(" ")
    called, _, caller = name.partition(_BY)
    caller = caller if ".py(" in caller else ""
    name = called if caller else name
    category = _category(name, on_gpu=kind == "gpu")
    arguments = dict(args.get(name, {}))
    if tie:
        arguments["correlation"] = int(tie[1])
    if kind == "gpu":
        arguments |= {"device": 0, "stream": int(number or 7)}
    return {
        "ph": "X",
        "cat": category,
        "name": name.removeprefix("@"),
        **({"caller": caller} if caller else {}),
        "pid": 0 if kind == "gpu" else _PID,
        "tid": int(number or (7 if kind == "gpu" else 1)),
        "ts": span.start() - origin,
        "dur": span.end() - span.start(),
        "args": arguments,
    }


def _category(name: str, *, on_gpu: bool) -> str:
    if on_gpu:
        for prefix, category in (("Memcpy", "gpu_memcpy"), ("Memset", "gpu_memset")):
            if name.startswith(prefix):
                return category
        return "kernel"
    if _REGION.match(name):
        return "user_annotation"
    if _CALL.match(name):
        return "cuda_runtime"
    return "python_function" if _PYTHON.match(name) else "cpu_op"
