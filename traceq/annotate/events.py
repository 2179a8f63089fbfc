"""Chrome trace events as text, all of a kind at once.

Times are written in microseconds with three decimals, exact to the nanosecond, with the
origin of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

CATEGORY = "traceq"
_FLOW = "traceq finding"
# Kineto's own arrows count from 0.
_FIRST_FLOW = 1 << 40


def literal(value: object) -> str:
    """Return a value as JSON."""
    return orjson.dumps(value).decode()


@dataclass(frozen=True)
class Writer:
    """Writes events of one process."""

    pid: int
    origin_ns: int = 0
    """Time at which ts is 0, in the file's own clock."""

    def _start(self, phase: str) -> str:
        return f'{{"ph":"{phase}","cat":"{CATEGORY}","pid":{self.pid},"tid":'

    def name(self, what: str, name: str, tid: int = 0, index: int | None = None) -> str:
        """Return events that name the process or a thread, and say where it stands."""
        head = f'{{"ph":"M","pid":{self.pid},"tid":{tid},"name":'
        events = [f'{head}"{what}_name","args":{{"name":{literal(name)}}}}}']
        if index is not None:
            events.append(
                f'{head}"{what}_sort_index","args":{{"sort_index":{index}}}}}'
            )
        return ",\n".join(events)

    def slices(self, rows: pl.DataFrame) -> pl.Series:
        """Return slices: ``tid``, ``start``, ``end``; ``name`` and ``args`` as JSON."""
        return rows.select(
            pl.concat_str(
                pl.lit(self._start("X")),
                pl.col("tid").cast(pl.String),
                pl.lit(',"ts":'),
                self._moment(pl.col("start")),
                pl.lit(',"dur":'),
                _microseconds(pl.col("end") - pl.col("start")),
                pl.lit(',"name":'),
                pl.col("name"),
                pl.lit(',"args":'),
                pl.col("args"),
                pl.lit("}"),
            ).alias("text")
        ).to_series()

    def counter(self, name: str, unit: str, points: pl.DataFrame) -> pl.Series:
        """Return the points of a counter: ``at`` and ``value``."""
        value = pl.col("value").round(1).cast(pl.String)
        return points.select(
            pl.concat_str(
                pl.lit(self._start("C") + "0"),
                pl.lit(',"ts":'),
                self._moment(pl.col("at")),
                pl.lit(f',"name":{literal(name)},"args":{{{literal(unit)}:'),
                value,
                pl.lit("}}"),
            ).alias("text")
        ).to_series()

    def flows(self, rows: pl.DataFrame) -> pl.Series:
        """Return arrows from slices, at ``tid`` and ``start``, to events of the file.

        Those are at ``to_pid`` and ``to_tid``, as JSON, and ``to_start``. ``flow`` is
        the number of each in the file, and their row if there is none.
        """
        of = pl.col("flow") if "flow" in rows.columns else pl.int_range(pl.len())
        number = (of.cast(pl.Int64) + _FIRST_FLOW).cast(pl.String)
        end = pl.concat_str(
            pl.lit(f',"name":"{_FLOW}","cat":"{CATEGORY}","id":'), number
        )
        return rows.select(
            pl.concat_str(
                pl.lit(f'{{"ph":"s","pid":{self.pid},"tid":'),
                pl.col("tid").cast(pl.String),
                pl.lit(',"ts":'),
                self._moment(pl.col("start")),
                end,
                pl.lit('},\n{"ph":"f","bp":"e","pid":'),
                pl.col("to_pid"),
                pl.lit(',"tid":'),
                pl.col("to_tid"),
                pl.lit(',"ts":'),
                self._moment(pl.col("to_start")),
                end,
                pl.lit("}"),
            ).alias("text")
        ).to_series()

    def _moment(self, ns: pl.Expr) -> pl.Expr:
        return _microseconds(ns + self.origin_ns)


def _microseconds(ns: pl.Expr) -> pl.Expr:
    """Write nanoseconds, which are not negative, as microseconds."""
    return pl.concat_str(
        (ns // 1000).cast(pl.String),
        pl.lit("."),
        (ns % 1000).cast(pl.String).str.zfill(3),
    )


def arguments(**values: Any) -> str:  # noqa: ANN401 - what JSON can write
    """Return arguments as JSON, without those that say nothing."""
    arguments_of: Mapping[str, Any] = {
        key.replace("_", " "): value for key, value in values.items() if value
    }
    return literal(arguments_of)
