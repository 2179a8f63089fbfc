"""Reserved memory at any moment: which segments, which of their blocks were free."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from linting import case_snapshot, rule_module

from traceq.analysis.memory.curve import memory_curve
from traceq.analysis.memory.fragmentation import (
    blocks_at,
    emptied_by,
    free_blocks,
    fullest,
    reserved_at,
)
from traceq.analysis.memory.history import History
from traceq.formats.snapshot import read_snapshot
from traceq.testing import draw_history, load_history

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.snapshot import Snapshot

peak_savings = rule_module("memory._peak_without").peak_savings
MIB = 1 << 20
MOMENTS = 12
CASES = (
    "graph_record.snapshot",
    "graph_rerecord.snapshot",
    "memory_leak.snapshot",
    "oom_fragmented.snapshot",
    "public/snapshot_train",
    "public/snapshot_no_time",
)
# In the pools of CUDA graphs blocks come and go without events.
WHOLE = [name for name in CASES if "graph" not in name]


def moments(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return some moments of a snapshot, the first and the last among them."""
    curve = memory_curve(snapshot)
    every = max(1, curve.height // MOMENTS)
    return pl.concat([curve.gather_every(every), curve.tail(1)]).to_dicts()


def read(content: dict[str, Any], folder: Path) -> Snapshot:
    path = folder / "made.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    return read_snapshot(path)


@pytest.mark.parametrize("name", CASES)
def test_segments_at_any_moment_are_what_was_reserved(name: str) -> None:
    snapshot = case_snapshot(f"{name}.pickle.gz")

    for moment in moments(snapshot):
        segments = reserved_at(snapshot, moment["event"])
        assert segments["size"].sum() == moment["reserved"]


@pytest.mark.parametrize("name", WHOLE)
def test_blocks_and_free_blocks_fill_the_segments(name: str) -> None:
    snapshot = case_snapshot(f"{name}.pickle.gz")
    lives = History(snapshot).lifetimes

    for moment in moments(snapshot):
        event = moment["event"]
        blocks = blocks_at(snapshot, lives, event)["block"].to_list()
        free = free_blocks(snapshot, lives, event)["size"].to_list()
        assert sum(blocks) + sum(free) == moment["reserved"]


@pytest.mark.parametrize("name", WHOLE)
def test_no_free_block_lies_where_a_tensor_is(name: str) -> None:
    snapshot = case_snapshot(f"{name}.pickle.gz")
    lives = History(snapshot).lifetimes

    for moment in moments(snapshot):
        blocks = blocks_at(snapshot, lives, moment["event"])
        free = free_blocks(snapshot, lives, moment["event"])
        inside = free.select("device", "address", "size").join_where(
            blocks.select("block", on="device", at="address"),
            pl.col("device") == pl.col("on"),
            pl.col("address") < pl.col("at") + pl.col("block"),
            pl.col("at") < pl.col("address") + pl.col("size"),
        )
        assert inside.is_empty()


def test_a_segment_that_grew_later_is_as_small_as_it_was(tmp_path: Path) -> None:
    content = draw_history("a.py:1 f [2M ] [4M")
    (segment, larger) = content["segments"]
    # One that expands: first 2 MiB were mapped, then 4 MiB more right behind them.
    whole = {**segment, "total_size": 6 * MIB, "is_expandable": True}
    whole["blocks"] = [
        {**segment["blocks"][0], "size": 2 * MIB, "state": "inactive"},
        {**larger["blocks"][0], "address": segment["address"] + 2 * MIB},
    ]
    later = {
        "action": "segment_map",
        "addr": segment["address"] + 2 * MIB,
        "size": 4 * MIB,
        "stream": 0,
        "time_us": 100,
    }
    events = content["device_traces"][0]
    events[-1]["addr"] = later["addr"]
    events.insert(len(events) - 1, later)
    snapshot = read(content | {"segments": [whole]}, tmp_path)

    before, after = (reserved_at(snapshot, event)["size"].sum() for event in (0, 4))

    assert (before, after) == (2 * MIB, 6 * MIB)


def test_the_pool_of_a_segment_that_is_gone_is_not_its_neighbours(
    tmp_path: Path,
) -> None:
    # The one that is gone lies behind the one that stays.
    content = draw_history("segment <20M\nsegment [30M ]\na.py:1 f  [1M")
    content["segments"][0]["segment_pool_id"] = (0, 1)

    segments = reserved_at(read(content, tmp_path), 0)

    assert segments.select("size", pl.col("pool").cast(pl.String)).rows() == [
        (20 * MIB, "0.1"),
        (30 * MIB, None),
    ]


def test_a_free_block_knows_what_is_held_of_its_segment() -> None:
    snapshot = load_history(
        """
        segment      <20M
        segment      <30M
        a.py:1 f      [9M
        """
    )
    lives = History(snapshot).lifetimes

    free = free_blocks(snapshot, lives, 0)

    sizes = {row["size"]: row["held"] for row in free.to_dicts()}
    assert sizes == {11 * MIB: 9 * MIB, 30 * MIB: 0}


def test_the_fullest_moment_is_the_one_with_the_most_in_use() -> None:
    curve = memory_curve(
        load_history(
            """
            segment      <40M
            a.py:1 f      [9M ] [30M ] [20M ]
            """
        )
    )

    (moment,) = fullest(curve).to_dicts()

    assert moment["allocated"] == 30 * MIB


@pytest.mark.parametrize(
    ("frames", "by"),
    [
        ("torch/cuda/memory.py:222 empty_cache, train.py:12 step", "empty_cache"),
        (
            "torch/cuda/memory.py:222 empty_cache, torch/cuda/graphs.py:249 __enter__",
            "graphs",
        ),
        ("train.py:12 step", ""),
    ],
)
def test_who_frees_segments_is_on_the_stack(frames: str, by: str) -> None:
    snapshot = load_history(f"who = {frames}\nsegment who [2M ]")
    (stack,) = snapshot.events["stack"].unique().to_list()

    assert emptied_by(snapshot, stack) == by


def test_where_another_moment_becomes_the_peak_less_is_saved() -> None:
    snapshot = load_history("a.py:1 f [50M ]\na.py:2 g          [40M ]")
    allocations = History(snapshot).allocations
    first = allocations.filter(pl.col("line") == 1)

    assert peak_savings(memory_curve(snapshot), first) == 10 * MIB


def test_what_was_there_before_the_history_is_saved_throughout() -> None:
    snapshot = load_history("weights <30M\na.py:1 f [50M ]")
    allocations = History(snapshot).allocations
    weights = allocations.filter(pl.col("alloc").is_null())

    assert peak_savings(memory_curve(snapshot), weights) == 30 * MIB
