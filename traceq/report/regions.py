"""Regions as text, Markdown, CSV and JSON: what each costs, and how two differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq import __version__
from traceq.analysis.base.significance import difference
from traceq.analysis.time.regions import BY_MODULE, by_path, ops_of
from traceq.common import units
from traceq.common.safe_text import as_unicode, plain_json, printable
from traceq.common.words import counted
from traceq.report.base.columns import Column, cut_middle
from traceq.report.base.content import Content, TextTable, telling_names
from traceq.report.base.markdown import section
from traceq.report.base.screen import line_width, screen
from traceq.report.base.text import rendered
from traceq.report.query import render_csv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.base.significance import Difference
    from traceq.analysis.time.regions import Regions

VERSION = 1
_OPS = 8
_WORDS = {"real": "real", "none": "no difference", "too few": "too few calls"}
_VERDICTS = {
    "real": "more than the spread of the calls explains",
    "none": "no difference beyond the spread of the calls",
    "too few": "too few calls to tell it from their spread",
}


@dataclass(frozen=True)
class Compared:
    """Two regions, or one of two traces: names, calls, and how they differ."""

    names: tuple[str, str]
    of: tuple[Regions, Regions]
    calls: tuple[pl.DataFrame, pl.DataFrame]

    @property
    def gpu(self) -> Difference:
        """GPU time of a call with its backward."""
        first, second = (
            (call["gpu"] + call["backward"]).to_list() for call in self.calls
        )
        return difference(first, second)

    @property
    def host(self) -> Difference:
        """The time from a call's start to its end on the host, as recorded."""
        first, second = (call["host"].to_list() for call in self.calls)
        return difference(first, second)


@dataclass(frozen=True)
class Shown:
    """Regions of the recordings, ready for any format."""

    paths: tuple[str, ...]
    regions: tuple[Regions, ...]
    by: str
    instances: bool
    compared: tuple[Compared, ...]
    top: int


def text(shown: Shown, *, width: int | None, color: bool) -> str:
    """Return a screen for each trace, and one for what was compared."""
    room = line_width(width)
    parts: list[Any] = []
    for content in contents(shown):
        parts += [*screen(content, room), ""]
    return rendered(parts[:-1], width=room, color=color)


def markdown(shown: Shown) -> str:
    """Return a section for each trace, and one for what was compared."""
    return "\n".join(map(section, contents(shown)))


def csv(shown: Shown) -> str:
    """Return a row for each region of each trace."""
    rows = [
        _rows(regions, shown).with_columns(pl.lit(as_unicode(path)).alias("trace"))
        for path, regions in zip(shown.paths, shown.regions, strict=True)
    ]
    return render_csv(pl.concat(rows).select("trace", pl.exclude("trace")))


def json(shown: Shown) -> str:
    """Return one object; ``version`` is that of its fields, times are nanoseconds."""
    content = {
        "version": VERSION,
        "traceq": __version__,
        "by": shown.by,
        "traces": [
            {
                "path": as_unicode(path),
                "steps": regions.steps,
                "gpu_ns": regions.gpu_ns,
                "placed_gpu_ns": regions.placed_ns,
                "regions": _rows(regions, shown).to_dicts(),
            }
            for path, regions in zip(shown.paths, shown.regions, strict=True)
        ],
        "compared": [_compared_data(pair) for pair in shown.compared],
    }
    return plain_json(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _rows(regions: Regions, shown: Shown) -> pl.DataFrame:
    table = by_path(regions, instances=shown.instances)
    return table.select(
        "path",
        "calls",
        **{f"{name}_ns": pl.col(name) for name in ("host", "idle", "gpu", "backward")},
        **{
            f"{figure}_ns_{name}": pl.col(f"{source}_{name}")
            for figure, source in (("host", "host"), ("gpu_and_backward", "gpu_all"))
            for name in ("low", "median", "high")
        },
        host_estimated_ns_median="host_estimated",
        kernels="kernels",
        launches="launches",
        copied_bytes="bytes",
        memory_bytes="memory",
    )


def _compared_data(pair: Compared) -> dict[str, Any]:
    return {
        "names": pair.names,
        **{
            figure: {
                "median_ns": [difference.before, difference.after],
                "calls": difference.calls,
                "ratio": difference.ratio,
                "chance": difference.chance,
                "verdict": difference.verdict,
            }
            for figure, difference in (("gpu", pair.gpu), ("host", pair.host))
        },
        "ops": _ops(pair).to_dicts(),
    }


def contents(shown: Shown) -> list[Content]:
    """Return the tables, or the comparison."""
    names = telling_names(shown.paths)
    tables = [
        _table(name, regions, shown)
        for name, regions in zip(names, shown.regions, strict=True)
    ]
    return [*tables, *_comparison(shown)]


def _table(name: str, regions: Regions, shown: Shown) -> Content:
    table = by_path(regions, instances=shown.instances)
    what = "module" if shown.by == BY_MODULE else "region"
    rest = table.height - shown.top
    facts = [
        (
            "GPU",
            f"{units.time(regions.gpu_ns / regions.steps)} a step, of it"
            f" {units.share(regions.placed_ns, regions.gpu_ns)} launched in"
            f" {'modules' if shown.by == BY_MODULE else 'regions'}",
        ),
        (
            "a call",
            "the median; host as recorded, and as estimated without the profiler and"
            " waits for the GPU; GPU with what the call launched and the backward of"
            " it",
        ),
    ]
    if rest > 0:
        facts.append(("left out", f"{counted(rest, what)}; --top shows more"))
    rows = tuple(_row(row, regions) for row in table.head(shown.top).to_dicts())
    return Content(
        printable(name), (), tuple(facts), (TextTable(_columns(what), rows),)
    )


def _columns(what: str) -> tuple[Column, ...]:
    numbers = (
        "calls",
        "host",
        "estimated",
        "GPU",
        "of it backward",
        "GPU idle",
        "kernels",
        "of GPU",
    )
    return (
        Column(what, cut=cut_middle),
        *(Column(title, number=True) for title in numbers),
        Column("10th to 90th", number=True, spare=True),
        Column("memory", number=True, spare=True),
    )


def _row(row: dict[str, Any], regions: Regions) -> tuple[str, ...]:
    calls = row["calls"]
    low, high = units.time(row["gpu_all_low"]), units.time(row["gpu_all_high"])
    return (
        printable(row["path"]),
        f"{calls:,}",
        units.time(row["host_median"]),
        "" if row["host_estimated"] is None else units.time(row["host_estimated"]),
        units.time(row["gpu_all_median"]),
        units.time(row["backward"] / calls),
        units.time(row["idle"] / calls),
        units.number(row["kernels"] / calls),
        units.share(row["gpu_all"], regions.gpu_ns),
        low if low == high else f"{low} to {high}",
        units.size(row["memory"] / calls),
    )


def _comparison(shown: Shown) -> list[Content]:
    if len(shown.compared) == 1:
        return [_two(shown.compared[0])]
    if not shown.compared:
        return []
    rows = tuple(_difference_row(pair) for pair in shown.compared[: shown.top])
    columns = (
        Column("region", cut=cut_middle),
        *(Column(title, number=True) for title in ("GPU", "→", "times", "host", "→ ")),
        Column("difference"),
    )
    return [
        Content("From the first to the second", (), (), (TextTable(columns, rows),))
    ]


def _difference_row(pair: Compared) -> tuple[str, ...]:
    gpu, host = pair.gpu, pair.host
    return (
        printable(pair.names[0]),
        units.time(gpu.before),
        units.time(gpu.after),
        _times(gpu),
        units.time(host.before),
        units.time(host.after),
        _WORDS[gpu.verdict],
    )


def _times(difference: Difference) -> str:
    return "" if difference.ratio is None else f"{difference.ratio:.2f}"


def _two(pair: Compared) -> Content:
    """Say in sentences how two regions differ, and list the ops that make it."""
    first, second = map(printable, pair.names)
    facts = [
        (label, f"{second} takes {_sentence(difference)}")
        for label, difference in (("GPU", pair.gpu), ("host", pair.host))
    ]
    columns = (
        Column("op", cut=cut_middle),
        *(
            Column(title, number=True)
            for title in ("GPU", "→", "kernels", "→ ", "difference")
        ),
    )
    rows = tuple(
        (
            printable(row["op"]),
            units.time(row["ns"]),
            units.time(row["ns_second"]),
            units.number(row["kernels"]),
            units.number(row["kernels_second"]),
            units.time(row["ns_second"] - row["ns"]),
        )
        for row in _ops(pair).head(_OPS).to_dicts()
    )
    title = f"{second} against {first}, a call with its backward"
    return Content(title, (), tuple(facts), (TextTable(columns, rows),))


def _sentence(change: Difference) -> str:
    times = f"{_times(change)} times as long: " if change.ratio is not None else ""
    calls = f"{change.calls[1]} and {change.calls[0]} calls"
    return (
        f"{times}{units.time(change.after)} against {units.time(change.before)}"
        f" (medians of {calls}): {_VERDICTS[change.verdict]}"
    )


def _ops(pair: Compared) -> pl.DataFrame:
    """Return the ops of two regions side by side, the largest difference first."""
    first, second = (
        ops_of(regions, calls)
        for regions, calls in zip(pair.of, pair.calls, strict=True)
    )
    both = first.join(second, on="op", how="full", coalesce=True, suffix="_second")
    change = (pl.col("ns_second") - pl.col("ns")).abs()
    return both.fill_null(0).sort(change, "op", descending=[True, False])


def compared_names(regions: Sequence[Regions]) -> list[str]:
    """Return the paths that two traces have in common, the most GPU time first."""
    first, second = (by_path(region)["path"].to_list() for region in regions)
    names = set(second)
    return [path for path in first if path in names]
