"""Records of a structured log of torch.compile, as ``TORCH_TRACE`` writes it.

A record is a line of JSON behind the head of torch's loggers; its payload is in the
lines after it, which begin with a tab.
"""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl

from traceq.linter import NOWHERE, Evidence, Place

from ._messages import library_file, resumed

_HEAD = r"^[A-Z]\d{4} [\d:.]+ \d+ \S+\] "
_RECORD = _HEAD + r'\{"'
_IDS = r'"frame_id": (\d+), "frame_compile_id": (\d+)'
# Records of one kind that are read, and lines of one payload. Heuristic thresholds.
_MOST = 5_000
_PAYLOAD_LINES = 12
_REASON = re.compile(r'"?\d+/\d+: (?P<reason>[^\n]+?)\s*"?,?\s*$', re.MULTILINE)
_NUMBER = r"([0-9.eE+-]+)"
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_METRICS = r'\] \{"(?:bwd_)?compilation_metrics": '
_BACKWARD = '^\t"name": "entire_backward_compile"'
_MICROSECONDS = 1e-6
_PROVENANCE = r'"cppCodeToPost": \{|^\t\{"(?:triton_|extern_kernels)'
_KERNEL = re.compile(r'"(triton_\w+|extern_kernels\.\w+)(?::\d+)?": \[([^\]]*)\]')
_NODE = re.compile(r'"(\w+)"')


def is_structured(log: pl.DataFrame) -> bool:
    """Return whether a log has records of ``TORCH_TRACE``, of whatever kind."""
    return bool(log["text"].str.contains(_RECORD).any())


def compilations(log: pl.DataFrame) -> pl.DataFrame:
    """Return the compilations that ended, in the order of the log.

    A row has ``line``, ``compile_id`` (as 0/1, null in old logs), ``function``,
    ``file`` and ``first_line``, ``seconds`` in all and of the phases ``backend``,
    ``inductor`` and ``code_generation``, the number of the ``frame``, and why it
    failed: ``fail_type`` and ``fail_reason``. A long line is cut: what stands late
    in it is null.
    """
    rows = log.filter(pl.col("text").str.contains(_METRICS)).head(_MOST)
    # A compilation that the limit of recompilations forbids names no function.
    frame = pl.col("compile_id").str.extract(r"(\d+)/\d+$")
    return (
        rows.select(
            "line",
            compile_id=_field("compile_id", _TEXT),
            function=_field("co_name", _TEXT),
            file=_field("co_filename", _TEXT),
            first_line=_field("co_firstlineno", r"(\d+)").cast(pl.Int64),
            backward=pl.col("text").str.contains('"bwd_compilation_metrics"'),
            seconds=_seconds(
                "entire_frame_compile_time_s", "dynamo_cumulative_compile_time_us"
            ),
            backend=_seconds(
                "backend_compile_time_s", "aot_autograd_cumulative_compile_time_us"
            ),
            inductor=_seconds(
                "inductor_compile_time_s", "inductor_cumulative_compile_time_us"
            ),
            code_generation=_seconds(
                "code_gen_time_s", "inductor_code_gen_cumulative_compile_time_us"
            ),
            fail_type=_field("fail_type", _TEXT),
            fail_reason=_field("fail_reason", _TEXT),
        )
        .with_columns(
            # The backward is compiled outside of the frame's time.
            seconds=pl.when("backward").then("inductor").otherwise("seconds"),
            frame=frame,
        )
        .with_columns(
            pl.col(name).fill_null(
                pl.when(pl.col("frame").is_not_null()).then(
                    pl.col(name).drop_nulls().first().over("frame")
                )
            )
            for name in ("function", "file", "first_line")
        )
    )


def unended(log: pl.DataFrame) -> list[Evidence]:
    """Return the compilation that the log ends in, of a frame or of its backward.

    One begins after the last one has ended; the ids stand late in a line, and are cut.
    """
    text = pl.col("text")
    begun, ended = (
        log.filter(text.str.contains(pattern))["line"]
        for pattern in (r'\] \{"dynamo_start": ', r'\] \{"compilation_metrics": ')
    )
    begun = begun.filter(begun > (ended.max() or 0)).head(1)
    # One event begins it and one ends it.
    backward = log.filter(text.str.contains(_BACKWARD))["line"]
    backward = backward.tail(len(backward) % 2)
    return [
        Evidence("not ended", name, note=f"(line {line})")
        for name, lines in (("a compilation", begun), ("that of a backward", backward))
        for line in lines
    ]


def cache_results(log: pl.DataFrame) -> dict[str, int]:
    """Return how often the caches had what was compiled: of hit, miss and bypass."""
    result = r'"artifact": \{"name": "fx_graph_cache_(hit|miss|bypass)"'
    results = log["text"].str.extract(result).drop_nulls()
    return {name: int((results == name).sum()) for name in results.unique().sort()}


def kernel_origins(log: pl.DataFrame) -> dict[str, list[str]]:
    """Return the nodes of the graph that each kernel of inductor computes, by name.

    A mapping that does not fit into a line that is read is there as far as it does.
    """
    mapped = log["text"].str.contains(_PROVENANCE) & log["text"].str.starts_with("\t")
    origins: dict[str, list[str]] = {}
    for text in log["text"].filter(mapped).head(_MOST):
        # The other mappings of the payload are of nodes to nodes.
        for name, nodes in _KERNEL.findall(
            text.partition('"cppCodeToPost"')[2] or text
        ):
            named = origins.setdefault(name, [])
            named += [match for match in _NODE.findall(nodes) if match not in named]
    return origins


def recompilations(log: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the recompilations of a log, in its order.

    Each has ``line``, ``compile_id``, ``reason`` and ``place``. The reason is the first
    guard that failed; the place is the user's call that made torch compile again, where
    the log has its stack.
    """
    places = _places(log)
    numbered = log.with_row_index("row")
    requested = numbered.filter(
        pl.col("text").str.contains(
            '"artifact": {"name": "recompile_reasons"', literal=True
        )
    ).head(_MOST)
    rows = requested.select(
        "row",
        "line",
        compile_id=pl.concat_str(
            [pl.col("text").str.extract(_IDS, at) for at in (1, 2)], separator="/"
        ),
    )
    return [
        {
            "line": row["line"],
            "compile_id": row["compile_id"],
            "reason": reason,
            "place": places.get(row["compile_id"], NOWHERE),
        }
        for row in rows.iter_rows(named=True)
        if (reason := _first_reason(_payload(log, row["row"])))
    ]


def short_reason(text: str) -> str:
    """Return the first line of a reason, and the next where that only announces it."""
    lines = [line for line in text.split("\\n") if line]
    end = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:end])


def _payload(log: pl.DataFrame, row: int) -> str:
    lines = []
    for text in log["text"][row + 1 : row + 1 + _PAYLOAD_LINES]:
        if not text.startswith("\t"):
            break
        lines.append(text[1:])
    return "\n".join(lines)


def _first_reason(payload: str) -> str:
    match = _REASON.search(payload)
    return match["reason"].strip() if match else ""


def _places(log: pl.DataFrame) -> dict[str, Place]:
    """Return the user's innermost line of the stack of each compilation's start."""
    names = _interned(log)
    starts = log.filter(pl.col("text").str.contains(_HEAD + r'\{"dynamo_start"'))
    places = {}
    for text in starts["text"].head(_MOST):
        record = _json(text)
        stack = record.get("dynamo_start", {}).get("stack") or []
        frames = [frame for frame in stack if isinstance(frame, dict)]
        own = [
            Place(
                file, frame.get("line"), resumed(str(frame.get("name"))), line_is="call"
            )
            for frame in frames
            if (file := names.get(frame.get("filename"), "")) and not library_file(file)
        ]
        if own:
            key = f"{record.get('frame_id')}/{record.get('frame_compile_id')}"
            places[key] = own[-1]
    return places


def _interned(log: pl.DataFrame) -> dict[Any, str]:
    """Return the file names that a log has by number."""
    pairs = log["text"].str.extract_groups(
        r'\] \{"str": \["((?:[^"\\]|\\.)*)", (\d+)\]'
    )
    rows = pairs.struct.unnest().drop_nulls()
    return {int(number): name for name, number in rows.head(_MOST).iter_rows()}


def _json(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text[text.index("] {") + 2 :])
    except (ValueError, RecursionError):
        # A line that was cut.
        return {}
    return record if isinstance(record, dict) else {}


def _field(name: str, value: str) -> pl.Expr:
    return pl.col("text").str.extract(f'"{name}": {value}')


def _seconds(new: str, old: str) -> pl.Expr:
    """Return a time of a compilation: in seconds, or as older versions write it."""
    microseconds = _field(old, _NUMBER).cast(pl.Float64, strict=False)
    return pl.coalesce(
        _field(new, _NUMBER).cast(pl.Float64, strict=False),
        microseconds * _MICROSECONDS,
    )
