"""Overhead of recording for ops, runtime calls and Python frames, measured locally.

The launcher starts this as a separate script once the program has ended, with the
program's Python: the same small pieces of work are timed without torch's profiler and
under it, with the options of the recording. Each is work of the host alone: nothing
waits for the GPU. The trace that torch writes gives the number of events of each piece,
and a fit over all pieces gives the cost of one event.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch.profiler import ProfilerActivity

VERSION = 1
# Without the profiler and under it, in turns: the clock of a CPU changes from second to
# second, and the fastest of each is compared. With a GPU there is one turn: of several
# profiles in a process, some have no calls of CUDA, and cost less for that.
ROUNDS, REPEATS = 6, 3
KINDS = {
    "frame": ("python_function",),
    "op": ("cpu_op",),
    "call": ("cuda_runtime", "cuda_driver"),
}
_MARK = "traceq: overhead "
_TYPICAL, _WEIGHT = "training", 4.0  # most like a step, so the fit keeps closest to it

nn: Any = torch.nn


def main(words: Sequence[str]) -> None:
    """Measure with the settings in the first word, and write to the second's file."""
    settings = json.loads(words[0])
    result = measure(
        settings["device"],
        stacks=settings["stacks"],
        shapes=settings["shapes"],
        memory=settings["memory_events"],
    )
    with open(words[1], "w", encoding="utf-8") as file:
        json.dump(result, file)


def measure(device: str, *, stacks: bool, shapes: bool, memory: bool) -> dict[str, Any]:
    """Return the cost of an event of each kind, and the overhead of recording it."""
    began = time.monotonic()
    cuda = device.startswith("cuda")
    work = _workloads(torch.device(device))
    rounds, repeats = (1, ROUNDS * REPEATS) if cuda else (ROUNDS, REPEATS)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if cuda else []
    plain: dict[str, int] = {}
    recorded: dict[str, int] = {}
    counts: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        plain = _faster(plain, _times(work, repeats, cuda=cuda))
        with torch.profiler.profile(
            activities=activities,
            record_shapes=shapes,
            with_stack=stacks,
            profile_memory=memory,
        ) as profiler:
            recorded = _faster(recorded, _times(work, repeats, cuda=cuda))
        counts = counts or _counts(profiler, list(work))
    rows = {
        name: {
            **counts[name],
            "plain_ns": plain[name],
            "recorded_ns": recorded[name],
        }
        for name in work
    }
    return {
        "version": VERSION,
        "device": device,
        "stacks": stacks,
        "shapes": shapes,
        "memory_events": memory,
        **costs(rows),
        "measured": rows,
        "seconds": round(time.monotonic() - began, 3),
    }


class Work(NamedTuple):
    """A piece of work, repeated until it has a few hundred events."""

    times: int
    piece: Callable[[], Any]

    def do(self) -> None:
        """Do it."""
        for _ in range(self.times):
            self.piece()


def _workloads(device: torch.device) -> dict[str, Work]:
    """Return the pieces of work by name."""
    values = torch.ones(16, 16, device=device)
    layers = [nn.Linear(16, 16, device=device) for _ in range(4)]
    model = nn.Sequential(*itertools.chain(*((layer, nn.ReLU()) for layer in layers)))
    identity = nn.Sequential(nn.Identity(), nn.Identity())

    def training() -> None:
        model(values).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None

    return {
        "functions": Work(100, _outer),
        "modules": Work(50, lambda: identity(None)),
        "views": Work(100, values.t),
        "in_place": Work(200, values.neg_),
        "out_of_place": Work(100, values.neg),
        "linear": Work(50, lambda: layers[0](values)),
        _TYPICAL: Work(5, training),
    }


def _outer() -> int:
    return _middle()


def _middle() -> int:
    return _inner()


def _inner() -> int:
    return _innermost()


def _innermost() -> int:
    return 1


def _times(work: dict[str, Work], repeats: int, *, cuda: bool) -> dict[str, int]:
    """Return the host's time for each piece of work, in ns, at the fastest."""
    results: dict[str, list[int]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, part in work.items():
            with torch.profiler.record_function(_MARK + name):
                began = time.perf_counter_ns()
                part.do()
                results[name].append(time.perf_counter_ns() - began)
            if cuda:
                torch.cuda.synchronize()
    return {name: min(times) for name, times in results.items()}


def _faster(one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
    return {name: min(time, one.get(name, time)) for name, time in two.items()}


def _counts(profiler: Any, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the mean number of events of each kind in a piece of work."""
    events = _events(profiler)
    marks = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"][len(_MARK) :])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(_MARK)
    )
    starts = [mark[0] for mark in marks]
    kinds = {category: kind for kind, many in KINDS.items() for category in many}
    counts = {name: dict.fromkeys(KINDS, 0.0) for name in names}
    for event in events:
        kind = kinds.get(event.get("cat", ""))
        place = bisect_right(starts, event["ts"]) - 1 if kind else -1
        if kind and place >= 0 and event["ts"] < marks[place][1]:
            counts[marks[place][2]][kind] += 1
    times = Counter(mark[2] for mark in marks)
    return {
        name: {kind: round(count / times[name], 2) for kind, count in of.items()}
        for name, of in counts.items()
    }


def _events(profiler: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(file)
        with open(file, encoding="utf-8", errors="replace") as stream:
            content: list[dict[str, Any]] = json.load(stream, strict=False)[
                "traceEvents"
            ]
    return content


def costs(rows: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return plain_ns and overhead_ns by kind of event; None for one without any."""
    table = list(rows.values())
    counts = [[row[kind] for kind in KINDS] for row in table]
    weights = [_WEIGHT if name == _TYPICAL else 1.0 for name in rows]
    plain = fit(counts, [row["plain_ns"] for row in table], weights)
    added = [max(0.0, row["recorded_ns"] - row["plain_ns"]) for row in table]
    overhead = fit(counts, added, weights)
    return {
        kind: {"plain_ns": round(plain[place]), "overhead_ns": round(overhead[place])}
        if any(row[place] for row in counts)
        else None
        for place, kind in enumerate(KINDS)
    }


def fit(
    counts: list[list[float]], times: list[float], weights: list[float]
) -> list[float]:
    """Return the costs, none below 0, whose sums come closest to the times.

    Errors count as shares of their time, so that short work counts as much as long.
    """
    rows = [
        ([weight * count / time for count in row], weight)
        for row, time, weight in zip(counts, times, weights)
        if time > 0
    ]
    columns = range(len(counts[0]))
    best, least = [0.0 for _ in columns], sum(wanted**2 for _, wanted in rows)
    for size in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, size):
            result = _least_squares(rows, chosen)
            if result is None or min(result) < 0:
                continue
            tried = [0.0 for _ in columns]
            for column, value in zip(chosen, result):
                tried[column] = value
            error = sum(
                (sum(a * x for a, x in zip(row, tried)) - wanted) ** 2
                for row, wanted in rows
            )
            if error < least:
                best, least = tried, error
    return best


def _least_squares(
    rows: list[tuple[list[float], float]], chosen: Sequence[int]
) -> list[float] | None:
    """Solve the normal equations for some columns; None where they have no answer."""
    system = [
        [sum(row[number] * row[two] for row, _ in rows) for two in chosen]
        + [sum(row[number] * wanted for row, wanted in rows)]
        for number in chosen
    ]
    size = len(chosen)
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(system[line][column]))
        if abs(system[pivot][column]) < 1e-18:  # noqa: PLR2004 - nothing but 0
            return None
        system[column], system[pivot] = system[pivot], system[column]
        for line in range(size):
            if line != column:
                factor = system[line][column] / system[column][column]
                system[line] = [
                    value - factor * other
                    for value, other in zip(system[line], system[column])
                ]
    return [system[line][size] / system[line][line] for line in range(size)]


if __name__ == "__main__":
    main(sys.argv[1:])
