"""The change of the peak between two memory snapshots, and how it is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import case_snapshot

from traceq.analysis.memory.diff import COPIES, memory_diff
from traceq.analysis.memory.history import History
from traceq.report.diff import memory as words
from traceq.testing import load_history

if TYPE_CHECKING:
    from traceq.analysis.memory.diff import MemoryDiff

MIB = 1 << 20
BEFORE = """
kept = at::_ops::mm::call, model.py:20 forward, train.py:9 step
weights     <100M
kept          [64M       ]
"""
PAIRS = [
    ("attn_manual", "attn_flash"),
    ("attn_flash", "layernorm_autocast"),
    ("copies", "copies_fixed"),
    ("moe_loop", "moe_batched"),
    ("vocab_misaligned", "vocab_padded"),
]


def cases(before: str, after: str) -> MemoryDiff:
    return memory_diff(
        *(
            History(case_snapshot(f"{name}.snapshot.pickle.gz"))
            for name in (before, after)
        )
    )


def drawn(before: str, after: str) -> MemoryDiff:
    return memory_diff(*(History(load_history(text)) for text in (before, after)))


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_categories_and_lines_add_up_to_the_change(before: str, after: str) -> None:
    diff = cases(before, after)

    change = diff.peaks["change"].sum()
    assert diff.categories["change"].sum() == change
    assert diff.sites["change"].sum() == change


def test_the_repaired_line_comes_first() -> None:
    diff = cases("attn_manual", "attn_flash")

    assert words.headline(diff) == (
        "memory: the peak falls by 770 MiB (19%), from 3.98 GiB to 3.23 GiB; mainly"
        " -768 MiB attention scores (softmax) at dev_cases.py:54 manual"
    )


def test_the_largest_of_many_changes_is_not_called_the_main_one() -> None:
    line = "a{n} = at::_ops::gelu::call, m{n}.py:{n} layer{n}, train.py:9 step"
    names = "\n".join(line.format(n=number) for number in range(1, 5))
    held = "\n".join(f"a{number}   [64M     ]" for number in range(1, 5))
    region = "region  [ProfilerStep#1      ]"
    first, second, *_ = held.splitlines()
    before = f"{names}\n{region}\nweights <100M\n{first}"
    alone = drawn(before, f"{before}\n{second}")
    many = drawn(before, f"{names}\n{region}\nweights <100M\n{held}")

    assert "; mainly +64.0 MiB" in words.headline(alone)
    assert "; most of all +64.0 MiB" in words.headline(many)


def test_autocast_shows_as_copies_of_weights_at_their_line() -> None:
    diff = cases("attn_flash", "layernorm_autocast")

    (row,) = diff.sites.filter(diff.sites["what"] == COPIES).to_dicts()
    assert (row["file"], row["line_after"]) == ("dev_cases.py", 41)
    assert row["line_before"] is None
    assert row["change"] == pytest.approx(101 * MIB, rel=0.01)


def test_weights_in_another_dtype_are_reported() -> None:
    text = words.text(
        cases("attn_flash", "layernorm_autocast"), width=None, color=False
    )

    output = " ".join(text.split())
    assert "weights: 148 MiB -> 296 MiB, in 52 allocations of twice the size" in output


def test_the_largest_allocation_of_a_category_is_compared() -> None:
    diff = cases("attn_flash", "layernorm_autocast")

    (row,) = diff.categories.filter(
        diff.categories["what"] == "logits and loss"
    ).to_dicts()
    assert (row["largest_before"], row["largest_after"]) == (500 * MIB, 1000 * MIB)


def test_a_snapshot_and_itself_have_no_change() -> None:
    diff = drawn(BEFORE, BEFORE)

    assert words.headline(diff) == "memory: no change, the peak is 164 MiB"
    assert set(diff.sites["change"]) == {0}
    assert "Why" not in words.text(diff, width=None, color=False)


def test_a_line_that_moved_is_the_same_line() -> None:
    diff = drawn(BEFORE, BEFORE.replace("model.py:20", "model.py:35"))

    (row,) = diff.sites.filter(diff.sites["file"] == "model.py").to_dicts()
    assert (row["line_before"], row["line_after"], row["change"]) == (20, 35, 0)


def test_what_is_new_and_what_is_gone_have_one_side_only() -> None:
    diff = drawn(BEFORE, BEFORE.replace("forward", "encode").replace("64M", "96M"))

    sides = {
        row["function"]: (row["before"], row["after"])
        for row in diff.sites.drop_nulls("file").to_dicts()
    }
    assert sides == {"forward": (64 * MIB, 0), "encode": (0, 96 * MIB)}


def test_a_device_that_only_one_has_changes_from_nothing() -> None:
    nothing = History(load_history("region [ProfilerStep#1 ]"))

    diff = memory_diff(nothing, History(load_history(BEFORE)))

    assert diff.peaks.select("before", "after").rows() == [(0, 164 * MIB)]
    assert words.headline(diff).startswith("memory: the peak rises by 164 MiB")


def test_two_empty_snapshots_can_be_compared() -> None:
    nothing = History(load_history("region [ProfilerStep#1 ]"))

    diff = memory_diff(nothing, nothing)

    assert words.headline(diff) == "memory: nothing is allocated in either snapshot"
    assert words.text(diff, width=None, color=False)


def test_plain_data_is_json() -> None:
    document = json.loads(json.dumps(words.data(drawn(BEFORE, BEFORE))))

    assert document["peaks"][0]["change"] == 0


def test_names_stay_text_in_every_format() -> None:
    hostile = BEFORE.replace("forward", "<b>|\x1b2J*x*")
    diff = drawn(BEFORE.replace("64M", "1M"), hostile)

    assert "\x1b" not in words.text(diff, width=None, color=False)
    markdown = words.markdown(diff)
    assert "\x1b" not in markdown
    assert "<b>" not in markdown
    assert "*x*" not in markdown


STEP = """
kept = at::_ops::mm::call, model.py:20 forward, train.py:9 step
gradient = MmBackward0::apply, torch::autograd::Engine::thread_main
update = at::_ops::sqrt::call, torch/optim/adamw.py:90 step, train.py:12 step
region      [forward      ][backward   ][optimizer ]
weights    <100M
kept          [{kept:<16}]
gradient                     [8M           ]
update                                   [64M]
"""


def test_peaks_in_different_phases_are_compared_in_the_same_phase() -> None:
    """Without most activations the peak is the optimizer's, where none lives."""
    diff = drawn(STEP.format(kept="400M"), STEP.format(kept="40M"))

    (peak,) = diff.peaks.to_dicts()
    assert (peak["phase_before"], peak["phase_after"]) == ("backward", "optimizer")
    assert peak["compared_in"] == "backward"
    (retained,) = diff.categories.filter(pl.col("what") == "activations").to_dicts()
    assert (retained["before"], retained["after"]) == (400 * MIB, 40 * MIB)
    assert (retained["most_before"], retained["most_after"]) == (400 * MIB, 40 * MIB)
    assert diff.sites["change"].sum() == -360 * MIB


def test_a_peak_that_moves_to_another_phase_is_reported() -> None:
    diff = drawn(STEP.format(kept="400M"), STEP.format(kept="40M"))

    assert words.headline(diff) == (
        "memory: the peak falls by 336 MiB (66%), from 508 MiB to 172 MiB; it moves"
        " from the backward to the optimizer; in the backward mainly -360 MiB"
        " activations (mm) at model.py:20 forward"
    )
    text = words.text(diff, width=None, color=False)
    assert "highest in backward" in text
    assert "400 MiB  40.0 MiB  -360 MiB" in text


def test_a_peak_that_rises_is_compared_in_the_phase_of_the_new_one() -> None:
    diff = drawn(STEP.format(kept="40M"), STEP.format(kept="400M"))

    (peak,) = diff.peaks.to_dicts()
    assert peak["compared_in"] == "backward"
    assert diff.sites["change"].sum() == 360 * MIB


EARLY = """
kept = at::_ops::mm::call, model.py:20 forward, train.py:9 step
gradient = MmBackward0::apply, torch::autograd::Engine::thread_main
region      [forward      ][backward         ][optimizer ]
weights    <100M
kept          [{kept:<17}]
gradient                    [8M]
gradient                              [{grads}        ]
"""


def test_a_category_that_lives_at_another_time_of_the_phase_is_shown_at_any_time() -> (
    None
):
    """Both peaks are in the backward: at its beginning, and at its end."""
    diff = drawn(
        EARLY.format(kept="400M", grads="80M"), EARLY.format(kept="60M", grads="80M")
    )

    (peak,) = diff.peaks.to_dicts()
    assert peak["compared_in"] is None
    (retained,) = diff.categories.filter(pl.col("what") == "activations").to_dicts()
    assert retained["after"] == 0
    text = words.text(diff, width=None, color=False)
    assert "at any time" in text
    assert "400 MiB -> 60.0 MiB" in text
