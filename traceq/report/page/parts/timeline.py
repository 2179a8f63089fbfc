"""A step as a picture: streams, threads, idle time by cause, and where findings are."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.analysis.time import timeline as analysis
from traceq.analysis.time.idle_causes import CAUSES, UNKNOWN
from traceq.common import units
from traceq.common.expressions import END
from traceq.common.intervals import overlap
from traceq.linter.finding_spans import CALL, GAP, HOST, KERNEL, OP, marked
from traceq.linter.run import Views
from traceq.report import bound as bound_words
from traceq.report.base.text import of_function, place, shapes, short_kernel
from traceq.report.page.colors import OTHER, color
from traceq.report.page.parts.findings import MOST, cards_of
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.time.timeline import Timeline
    from traceq.model.trace import Trace
    from traceq.report.page.section import Subject

# Maximum size of a picture's data, so that the page stays below 2 MB.
_MOST_BYTES = 800_000
_MOST_SLICES, _FEWEST_SLICES = 20_000, 500
_LONGEST = 160
_MODULE = "nn.Module: "
_FUNCTION = re.compile(r"(.+)\((\d+)\): (.+)", re.DOTALL)
# Marks nearer to each other than this share of the window are one.
_NEAR = 1 / 4000
_CALLS = {
    "launch": "launch",
    "graph launch": "launch",
    "copy": "launch",
    "set": "launch",
    "sync": "sync",
    "allocation": "memory",
    "capture": "compile",
}
_TABLES = {
    analysis.OPS: "ops",
    analysis.REGIONS: "host",
    analysis.FRAMES: "python",
}
_KINDS = {
    analysis.KERNELS: "kernel",
    analysis.OPS: "op",
    analysis.CALLS: "call",
    analysis.REGIONS: "region",
    analysis.FRAMES: "function",
}


def timeline(subject: Subject) -> Section | None:
    """Return the picture; none where there is no trace, or nothing in it."""
    trace = subject.recording.trace if subject.recording else None
    if trace is None:
        return None
    step = subject.step if subject.step is not None else analysis.typical_step(trace)
    most = _MOST_SLICES
    drawn = analysis.timeline(trace, step, most)
    if not drawn.slices.height or drawn.end <= drawn.start:
        return None
    data = _data(subject, trace, drawn)
    while len(orjson.dumps(data)) > _MOST_BYTES and most > _FEWEST_SLICES:
        most //= 2
        drawn = analysis.timeline(trace, step, most)
        data = _data(subject, trace, drawn)
    return Section(
        key=subject.key("timeline"),
        title="A step as a picture" if step is not None else "The trace as a picture",
        template="timeline.html",
        context={
            "step": step,
            "typical": subject.step is None,
            "span": units.time(drawn.end - drawn.start),
            "shortest": units.time(drawn.shortest) if drawn.shortest else "",
            "left_out": drawn.left_out,
            "gpu": bool(drawn.lanes["gpu"].any()),
            "idle": _idle(drawn),
        },
        data=data,
    )


def _idle(drawn: Timeline) -> list[tuple[str, str, str, str]]:
    """Return the GPU's idle time by cause: name, colour, time and share."""
    whole = drawn.end - drawn.start
    causes = drawn.gaps.group_by("cause").agg(
        time=(pl.col("end") - pl.col("start")).sum()
    )
    return [
        (
            bound_words.cause_name(cause),
            color(cause),
            units.time(time),
            units.share(time, whole),
        )
        for cause, time in causes.sort("time", "cause", descending=[True, False]).rows()
    ]


def _data(subject: Subject, trace: Trace, drawn: Timeline) -> dict[str, Any]:
    slices = analysis.described(trace, drawn.slices)
    texts = _Texts()
    names = _mapped(slices, ["table", "name"], lambda row: texts.at(_name(*row)))
    columns = {
        "name": names,
        "color": _mapped(
            slices.with_columns(module_call=_is_module()),
            ["table", "cause", "call", "compiling", "module_call"],
            _colored(texts),
        ),
        "detail": _details(trace, slices, texts),
    }
    filled = slices.with_columns(
        **columns,
        start=pl.col("start") - drawn.start,
        length=pl.col("end") - pl.col("start"),
        kind=slices["table"].replace_strict(list(_KINDS), range(len(_KINDS))),
    )
    return {
        "span": drawn.end - drawn.start,
        "step": drawn.step,
        "lanes": [
            {"name": name, "gpu": gpu, "rows": list(_rows(filled, lane))}
            for lane, gpu, name in drawn.lanes.select("lane", "gpu", "name").rows()
        ],
        "gaps": _gaps(drawn),
        "findings": list(_findings(subject, trace, drawn)),
        "kinds": list(_KINDS.values()),
        "details": texts.details,
        "texts": texts.texts,
    }


class _Texts:
    """Texts of the picture, each once, by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._tuples: dict[tuple[int, ...], int] = {}

    def at(self, text: str) -> int:
        return self._numbers.setdefault(_short(text), len(self._numbers))

    def detail(self, *texts: str) -> int:
        key = tuple(self.at(text) for text in texts)
        return self._tuples.setdefault(key, len(self._tuples))

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    @property
    def details(self) -> list[tuple[int, ...]]:
        return list(self._tuples)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _mapped(frame: pl.DataFrame, columns: list[str], number: Any) -> pl.Series:  # noqa: ANN401 - a function of a row
    """Return a number for each row, by a function of what is in some columns."""
    have = [column for column in columns if column in frame.columns]
    missing = [pl.lit(None).alias(column) for column in columns if column not in have]
    keys = frame.with_columns(missing).select(columns)
    unique = keys.unique(maintain_order=True)
    numbers = pl.Series("number", [number(row) for row in unique.rows()], pl.Int64)
    joined = keys.join(
        unique.with_columns(numbers),
        on=columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return joined["number"]


def _name(table: str, name: str | None) -> str:
    if table == analysis.KERNELS:
        return short_kernel(name or "")
    if table == analysis.FRAMES and (match := _FUNCTION.fullmatch(name or "")):
        file, line, function = match.groups()
        return of_function(PurePath(file).name, int(line), function)
    return (name or "").removeprefix(_MODULE)


def _is_module() -> pl.Expr:
    """Return whether a slice is a call of a module, not of another function."""
    return (pl.col("table") == analysis.FRAMES) & pl.col("name").str.starts_with(
        _MODULE
    )


def _colored(texts: _Texts) -> Any:  # noqa: ANN401 - a function of a row
    def number(row: tuple[str, str | None, str | None, bool | None, bool]) -> int:
        table, cause, call, compiling, module_call = row
        if cause:
            return texts.at(color(cause))
        if compiling:
            return texts.at("compile")
        if module_call:
            return texts.at("host")
        if table == analysis.CALLS:
            return texts.at(_CALLS.get(call or "", OTHER))
        return texts.at(_TABLES[table])

    return number


def _details(trace: Trace, slices: pl.DataFrame, texts: _Texts) -> pl.Series:
    """Return the numbers of the texts on a slice: op, module, line and shapes."""
    columns = ["table", "op", "module", "file", "line", "function", "call_line"]
    details = {}
    if "inputs" in slices.columns:
        rows = slices["inputs"].drop_nulls().unique()
        details = dict(
            zip(rows, map(shapes, trace.inputs["dims"][rows].to_list()), strict=True)
        )

    def number(row: tuple[Any, ...]) -> int:
        table, op, module, file, line, function, call_line, inputs = row
        where = (
            place(file, call_line, function)
            if call_line
            else of_function(file, line, function)
        )
        return texts.detail(
            "" if table == analysis.OPS else op or "",
            module or "",
            where,
            details.get(inputs, ""),
        )

    return _mapped(slices, [*columns, "inputs"], number)


def _rows(slices: pl.DataFrame, lane: int) -> Iterator[list[list[int]]]:
    """Yield the rows of a lane: starts, each from the one before, lengths and so on.

    The last list has the time of the slices in each run, and nothing of the others.
    """
    rows = slices.filter(pl.col("lane") == lane)
    columns = ("length", "name", "color", "detail", "kind", "count")
    deepest = rows["depth"].max()
    for depth in range(int(deepest) + 1 if isinstance(deepest, int) else 0):
        row = rows.filter(pl.col("depth") == depth)
        starts = row["start"].diff().fill_null(row["start"])
        lists = [row[column].to_list() for column in columns]
        runs = row.filter(pl.col("count") > 1)["busy"].to_list()
        yield [starts.to_list(), *lists, runs]


def _gaps(drawn: Timeline) -> dict[str, Any]:
    """Return the GPU's idle gaps; short neighbours of one cause are merged.

    So the sum of a range by cause is that of its gaps.
    """
    near = max(1, round((drawn.end - drawn.start) * _NEAR))
    causes = [*CAUSES, UNKNOWN]
    gaps = drawn.gaps.with_columns(
        start=pl.col("start") - drawn.start, length=pl.col("end") - pl.col("start")
    )
    short = pl.col("length") < near
    alone = -1 - pl.int_range(pl.len(), dtype=pl.Int64)
    merged = (
        gaps.group_by(
            "cause",
            bin=pl.when(short).then(pl.col("start") // near).otherwise(alone),
            maintain_order=True,
        )
        .agg(pl.col("start").min(), pl.col("length").sum())
        .sort("start", maintain_order=True)
    )
    return {
        "starts": merged["start"].diff().fill_null(merged["start"]).to_list(),
        "lengths": merged["length"].to_list(),
        "causes": [causes.index(cause) for cause in merged["cause"]],
        "names": [bound_words.cause_name(cause) for cause in causes],
        "colors": [color(cause) for cause in causes],
    }


def _findings(
    subject: Subject, trace: Trace, drawn: Timeline
) -> Iterator[dict[str, Any]]:
    """Yield the findings that are somewhere in the window, and where."""
    recording = subject.recording
    view = Views(recording).trace if recording else None
    if view is None:
        return
    marks = _on_lanes(trace, drawn, marked(view, subject.outcome.findings))
    by_finding = {
        number: (
            rows["lane"].to_list(),
            rows["start"].to_list(),
            rows["length"].to_list(),
        )
        for (number,), rows in marks.partition_by("finding", as_dict=True).items()
    }
    for card in cards_of(subject)[:MOST]:
        if card.number in by_finding:
            lanes, starts, lengths = by_finding[card.number]
            yield {
                "number": card.number,
                "card": card.key,
                "code": card.finding.code,
                "name": card.finding.name,
                "cost": card.cost,
                "severity": card.severity,
                "lanes": lanes,
                "starts": starts,
                "lengths": lengths,
            }


def _on_lanes(trace: Trace, drawn: Timeline, marks: pl.DataFrame) -> pl.DataFrame:
    """Return the marks in the window by ``finding`` and ``lane``; -1 is idle time.

    Marks that are near each other are one.
    """
    inside = marks.filter(pl.col("start") < drawn.end, pl.col("end") > drawn.start)
    on_gpu = drawn.lanes.filter("gpu").select("device", "stream", "lane")
    on_host = drawn.lanes.filter(~pl.col("gpu")).select("thread", "lane")
    kernels = trace.kernels.select("id", "device", "stream")
    threads = {OP: trace.ops, CALL: trace.runtime}
    parts = [
        inside.filter(pl.col("what") == KERNEL)
        .join(kernels, on="id")
        .join(on_gpu, on=["device", "stream"]),
        inside.filter(pl.col("what") == GAP).with_columns(lane=pl.lit(-1)),
        _of_threads(trace, inside.filter(pl.col("what") == HOST), on_host),
        *(
            inside.filter(pl.col("what") == what)
            .join(table.select("id", "thread"), on="id")
            .join(on_host, on="thread")
            for what, table in threads.items()
        ),
    ]
    columns = ["finding", pl.col("lane").cast(pl.Int64), "start", "end"]
    every = pl.concat(part.select(columns) for part in parts).drop_nulls("lane")
    near = max(1, round((drawn.end - drawn.start) * _NEAR))
    reached = pl.col("end").cum_max().shift(1).over("finding", "lane")
    begins = (pl.col("start") > reached + near).fill_null(value=True)
    return (
        every.with_columns(
            start=pl.max_horizontal("start", drawn.start) - drawn.start,
            end=pl.min_horizontal("end", drawn.end) - drawn.start,
        )
        .sort("finding", "lane", "start")
        .with_columns(run=begins.cum_sum())
        .group_by("finding", "lane", "run", maintain_order=True)
        .agg(pl.col("start").min(), pl.col("end").max())
        .with_columns(length=pl.col("end") - pl.col("start"))
    )


def _of_threads(
    trace: Trace, spans: pl.DataFrame, on_host: pl.DataFrame
) -> pl.DataFrame:
    """Return spans of the host's time with the ``lane`` of the thread that worked.

    That is the one that ran ops and calls in most of it; of equals the first.
    """
    done = pl.concat(
        table.select("thread", start="ts", end=END)
        for table in (trace.host_ops, trace.runtime)
    )
    worked = {
        str(lane): overlap(spans, done.filter(pl.col("thread") == thread))
        for thread, lane in on_host.rows()
    }
    if not worked or not spans.height:
        return spans.with_columns(lane=pl.lit(None, pl.Int64)).clear()
    most = pl.DataFrame(worked).select(pl.concat_list(pl.all()).list.arg_max())
    return spans.with_columns(lane=on_host["lane"][most.to_series()])
