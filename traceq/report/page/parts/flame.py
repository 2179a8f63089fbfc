"""The flame graph: where GPU time, host time and idle GPU time are in the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.replay.bound import host_account_of
from traceq.analysis.time.flame import gpu_flame, host_flame
from traceq.common import units
from traceq.model.schema import PHASES
from traceq.report.base.text import short_kernel
from traceq.report.page.colors import color
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from traceq.report.page.section import Subject

# Paths that take less than this share of the whole are not drawn on their own.
_SMALLEST = 0.0003
_MOST = 2500
_LONGEST = 120
_INNER = "host"


@dataclass
class _Node:
    """A part of a path, with all that is below it."""

    value: float = 0.0
    calls: float = 0.0
    causes: dict[str, float] = field(default_factory=dict)
    below: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Flame:
    """One graph: what it is of, and its rows from ``path``, a column and causes."""

    key: str
    title: str
    rows: pl.DataFrame
    column: str
    note: str

    @property
    def total(self) -> float:
        """The time of all of it."""
        return float(self.rows[self.column].sum())


def flame(subject: Subject) -> Section | None:
    """Return the graphs; none where there is no trace, or nothing in it."""
    graphs = [graph for graph in _graphs(subject) if graph.total > 0]
    if not graphs:
        return None
    texts: dict[str, int] = {}
    trees = {graph.key: _tree(graph, texts) for graph in graphs}
    return Section(
        key=subject.key("flame"),
        title="Flame graph",
        template="flame.html",
        context={
            "graphs": [
                (graph.key, graph.title, units.time(graph.total), graph.note)
                for graph in graphs
            ],
        },
        data={"graphs": trees, "texts": list(texts)},
    )


def _graphs(subject: Subject) -> Iterator[Flame]:
    recording = subject.recording
    trace = recording.trace if recording else None
    if recording is None or trace is None:
        return
    if trace.kernels.height:
        rows = gpu_flame(trace, steady_steps(trace))
        note = "kernels of a step, as recorded; those that overlap count twice"
        yield Flame("gpu", "GPU time", rows, "time", note)
    account = host_account_of(trace, recording.step_ns)
    rows = host_flame(trace, account.segments, account.steps)
    note = "self time of the threads that launch, as recorded"
    yield Flame("host", "Host time", rows, "time", note)
    if trace.kernels.height:
        note = "how long the GPU idles while the host is there, as recorded"
        yield Flame("idle", "Idle GPU time", rows, "idle", note)


def _tree(graph: Flame, texts: dict[str, int]) -> dict[str, Any]:
    """Return the nodes of a graph from the outside in, each before what is below it."""
    rows = graph.rows.select("path", "cause", graph.column, "calls").sort(
        graph.column, descending=True
    )
    root = _Node()
    for path, cause, value, calls in rows.filter(rows[graph.column] > 0).iter_rows():
        _add(root, path, cause, value, calls)
    smallest = root.value * _SMALLEST
    nodes = list(_flat(root, 0, smallest))
    while len(nodes) > _MOST:
        smallest *= 2
        nodes = list(_flat(root, 0, smallest))

    def number(text: str) -> int:
        return texts.setdefault(text[:_LONGEST], len(texts))

    return {
        "total": root.value,
        "depths": [depth for depth, *_ in nodes],
        "names": [number(name) for _, name, *_ in nodes],
        "values": [round(value) for *_, value, _, _ in nodes],
        "calls": [round(calls, 1) for *_, calls, _ in nodes],
        "colors": [number(shade) for *_, shade in nodes],
    }


def _add(root: _Node, path: list[str], cause: str, value: float, calls: float) -> None:
    node = root
    node.value += value
    for part in [*path[:-1], short_kernel(path[-1])]:
        node = node.below.setdefault(part, _Node())
        node.value += value
        node.calls += calls
        node.causes[cause] = node.causes.get(cause, 0.0) + value


def _flat(
    node: _Node, depth: int, smallest: float
) -> Iterator[tuple[int, str, float, float, str]]:
    """Yield depth, name, value, calls and colour; what is small is one at the end."""
    small = [child for child in node.below.values() if child.value < smallest]
    below = sorted(node.below.items(), key=lambda one: _rank(depth, *one))
    for name, one in below:
        if one.value < smallest:
            continue
        shade = _INNER if one.below else color(_largest(one.causes))
        yield depth, name, one.value, one.calls, shade
        yield from _flat(one, depth + 1, smallest)
    rest = sum(item.value for item in small)
    if rest >= smallest:
        yield depth, f"and {len(small):,} more", rest, 0.0, _INNER


def _rank(depth: int, name: str, node: _Node) -> tuple[int, float, str]:
    """Return the sort key of frames: phases as they run, others by their time."""
    phase = PHASES.index(name) if not depth and name in PHASES else len(PHASES)
    return phase, -node.value, name


def _largest(causes: dict[str, float]) -> str:
    return max(causes, key=lambda cause: causes[cause])
