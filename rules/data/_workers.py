"""Number of workers that a DataLoader needs, and the step time with them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.base.sync_calls import TO_GPU, copy_directions
from traceq.analysis.replay.simulation import Change
from traceq.analysis.time import host_activity
from traceq.linter import END, asof, dataclass, named_like

if TYPE_CHECKING:
    from traceq.linter import View


@dataclass(frozen=True)
class WorkerPlan:
    """Workers for what the training process loads; times are without the profiler."""

    loading_ns: float
    """Time of loading per step."""
    rest_ns: float
    """Duration of a step if workers load."""
    tensors: float
    """Number of them in a batch, by its copies to the GPU."""
    cores: int | None
    """Number of them for this process, where that is known."""
    workers: int
    share: float
    """The share of loading that these workers take off the training process."""
    before_ns: float
    """Duration of a step without changes."""

    copied: float
    """Number of tensors in a batch as it is, if it is collated into fewer."""
    wanted: int = 0
    """Number of workers that was asked for; 0 are as many as needed."""

    @classmethod
    def of(cls, view: View, regions: pl.DataFrame, wanted: int) -> WorkerPlan:
        """Return the plan for what is loaded in regions; 0 wanted are as needed."""
        return cls._of(view, regions, wanted, _tensors(view, regions))

    def with_tensors(
        self, view: View, regions: pl.DataFrame, tensors: float
    ) -> WorkerPlan:
        """Return the plan where a batch is collated into this many tensors."""
        plan = self._of(view, regions, self.wanted, tensors)
        return replace(plan, copied=self.copied)

    @classmethod
    def _of(
        cls, view: View, regions: pl.DataFrame, wanted: int, tensors: float
    ) -> WorkerPlan:
        loading = loading_ns(view)
        handing = (
            min(1.0, tensors * assumptions.WORKER_TENSOR_NS / loading)
            if loading
            else 0.0
        )
        rest, cores = step_without(view, regions, 1 - handing), _cores(view)
        worked = assumptions.WORKER_SLOWDOWN * loading
        needed = (
            max(assumptions.FEWEST_WORKERS, math.ceil(worked / rest)) if rest else 1
        )
        workers = wanted or min(needed, cores or assumptions.USUAL_WORKERS)
        share = _share(view, regions, worked / workers, 1 - handing)
        before = step_without(view, regions, 0)
        return cls(
            *(loading, rest, tensors, cores, workers, share, before),
            copied=tensors,
            wanted=wanted,
        )

    @property
    def needed(self) -> int:
        """Number of workers that load as fast as the rest of the step goes."""
        return math.ceil(self.worked_ns / self.rest_ns) if self.rest_ns else 1

    @property
    def worked_ns(self) -> float:
        """Time of a worker for the batches of a step."""
        return assumptions.WORKER_SLOWDOWN * self.loading_ns

    @property
    def handing_ns(self) -> float:
        """Time that the training process still takes for a batch."""
        return self.tensors * assumptions.WORKER_TENSOR_NS

    @property
    def step_ns(self) -> float:
        """Duration of a step with these workers."""
        return max(self.rest_ns, self.worked_ns / self.workers)

    @property
    def data(self) -> dict[str, int | None]:
        """Data for programs."""
        return {
            "workers_now": 0,
            "workers_needed": self.needed,
            "workers": self.workers,
            "saves_with_workers_ns": round(max(0.0, self.before_ns - self.step_ns)),
            "cores": self.cores,
            "step_with_workers_ns": round(self.step_ns),
            "tensors": round(self.copied),
        }


# What the training process calls of the DataLoader, whose file is torch's.
_LOADER = r"^torch/utils/data/dataloader\.py"


def loading_ns(view: View) -> float:
    """Return what loading takes the training process a step."""
    entries = view.host_account.entries.filter(pl.col("kind") == host_activity.DATA)
    return float(entries["estimated"].sum())


def called_in(calls: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the Python calls that begin and end in one of the regions."""
    around = regions.select("thread", start="start", until="end")
    joined = asof(calls.with_columns(end=END), around, "ts", "start", by="thread")
    return joined.filter(pl.col("end") <= pl.col("until"))


def waited_ns(view: View, regions: pl.DataFrame) -> int | None:
    """Return how long the program waited in regions for a batch to be ready.

    The rest of them it took what was ready: read and unpickled it, and mapped the
    memory of its tensors. None if the calls in the regions were not recorded.
    """
    frames = view.trace.frames
    calls = frames.filter(named_like(frames, f"{_LOADER}|{host_activity.WAITS}"))
    inside = called_in(calls.select("name", "thread", "ts", "dur"), regions)
    waits = named_like(inside, host_activity.WAITS)
    if waits.all():
        return None
    return int(inside["dur"].filter(waits).sum())


@dataclass(frozen=True)
class FirstBatches:
    """The first batches of epochs, which nobody can load ahead."""

    epochs: int
    share: float
    """Their share of the time that loading takes."""


def first_batches(view: View, regions: pl.DataFrame) -> FirstBatches:
    """Return what taking the first batch of each epoch takes, as stacks show it."""
    frames = view.trace.frames
    begins = frames.filter(named_like(frames, rf"{_LOADER}\(\d+\): __iter__$"))
    firsts = asof(
        begins.select("thread", until=END).sort("until"),
        regions.select("thread", "id", "start", "end").sort("start"),
        "until",
        "start",
        by="thread",
        strategy="forward",
    )
    firsts = firsts.drop_nulls("id").unique("id")
    time, all_time = (
        int((part["end"] - part["start"]).sum()) for part in (firsts, regions)
    )
    return FirstBatches(firsts.height, time / all_time if all_time else 0.0)


def step_without(view: View, regions: pl.DataFrame, share: float) -> float:
    """Return what a step takes if this share of loading goes."""
    change = Change(spans=regions.select("start", "end"), host_share=share)
    return view.replay.run([change], view.calibration.likely).step_ns


def _share(view: View, regions: pl.DataFrame, step_ns: float, most: float) -> float:
    """Return the share of loading to remove so that a step takes that long."""
    if step_without(view, regions, most) >= step_ns:
        return most
    low, high = 0.0, most
    for _ in range(assumptions.BISECTIONS):
        middle = (low + high) / 2
        longer = step_without(view, regions, middle) > step_ns
        low, high = (middle, high) if longer else (low, middle)
    return (low + high) / 2


def _tensors(view: View, regions: pl.DataFrame) -> float:
    """Return how many tensors of a batch go to the GPU, each by a copy of its own."""
    copies = copy_directions(view.trace).filter(pl.col("direction") == TO_GPU)
    calls = view.runtime.join(copies, left_on="id", right_on="launch")
    return calls.height / max(1, regions.height)


def _cores(view: View) -> int | None:
    """Return how many cores there are for each rank of the machine."""
    rank, run = view.trace.rank, view.trace.run
    if rank is None or rank.cores is None:
        return None
    return max(1, rank.cores // max(1, len(run.ranks) if run else 1))
