"""Allocations: categories, lifetimes and growth."""

from __future__ import annotations

import pickle
from functools import cache
from typing import TYPE_CHECKING

import polars as pl
import pytest
from recordings import OWN_SNAPSHOTS, SNAPSHOTS, loaded, path_of, read

from traceq.analysis.memory.categories import ALLOCATIONS
from traceq.analysis.memory.history import History
from traceq.analysis.memory.scaling import memory_scaling
from traceq.analysis.memory.summary import summarise_memory
from traceq.analysis.memory.timeline import category_curves, highest_moments, timeline
from traceq.formats.snapshot import read_snapshot
from traceq.testing.history import draw_history, load_history

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.snapshot import Snapshot

MIB = 1 << 20
FIXTURE = OWN_SNAPSHOTS["attn_manual"]
TRAINING = [name for name in OWN_SNAPSHOTS if not name.startswith("oom_")]
MODULE = "torch/nn/modules/module.py:1790 _call_impl"
ENGINE = "torch::autograd::Engine::thread_main"
OPTIMIZER = "torch/optim/adamw.py:90 step"


@cache
def history(path: Path) -> History:
    return History(read(path))


def at_peak(snapshot: Snapshot) -> dict[str, int]:
    """Return how many MiB of each category are live at the peak."""
    sums = History(snapshot).at_peak.group_by("category").agg(pl.sum("size"))
    return {category: round(size / MIB) for category, size in sums.iter_rows()}


def categories(drawing: str) -> dict[int, str]:
    """Return the category of each allocation in a drawing, by its MiB."""
    rows = History(load_history(drawing)).allocations.select("size", "category")
    return {round(size / MIB): category for size, category in rows.iter_rows()}


# Real histories.


@pytest.mark.parametrize("path", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_allocations_are_as_the_schema_says(path: Path) -> None:
    assert dict(history(path).allocations.schema) == ALLOCATIONS.dtypes


@pytest.mark.parametrize("path", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_what_lives_adds_up_to_the_curve_at_all_times(path: Path) -> None:
    snapshot = read(path)
    if snapshot.facts.incomplete:
        pytest.skip("the beginning of its history was overwritten")
    curve = history(path).curve

    for event, device, allocated in (
        curve.gather_every(max(1, curve.height // 50))
        .select("event", "device", "allocated")
        .iter_rows()
    ):
        live = history(path).live(device, event)
        assert live["size"].sum() == allocated


@pytest.mark.parametrize("name", TRAINING)
def test_nine_tenths_of_the_peak_have_a_category(name: str) -> None:
    live = history(OWN_SNAPSHOTS[name]).at_peak
    unknown = live.filter(pl.col("category") == "unknown")

    assert 10 * unknown["size"].sum() < live["size"].sum()


def test_the_scores_of_handwritten_attention_are_found_at_their_line() -> None:
    live = history(FIXTURE).at_peak
    scores = live.filter(pl.col("category") == "attention scores")

    # Batch 8, 12 heads, 1024 by 1024 in 16-bit, in each of 4 layers.
    assert scores["size"].to_list() == [8 * 12 * 1024 * 1024 * 2] * 4
    assert scores.select("file", "line", "function").unique().rows() == [
        ("dev_cases.py", 54, "manual")
    ]


def test_logits_and_what_the_loss_makes_of_them_are_of_one_size() -> None:
    live = history(FIXTURE).at_peak
    logits = live.filter(pl.col("category") == "logits and loss", pl.col("size") > MIB)

    # Batch 8, 1024 tokens, 32000 words: the logits, their log-softmax and gradients.
    assert logits["size"].to_list() == [8 * 1024 * 32000 * 2] * 4
    assert logits["op"].to_list()[:2] == ["linear", "cross_entropy_loss"]


def test_without_stacks_weights_and_states_are_inferred_from_gradients() -> None:
    result = at_peak(read(FIXTURE))

    # AdamW has two states for each weight, in the same dtype.
    assert result["weights"] == 148
    assert result["optimizer state"] == 296


def test_a_chain_goes_from_the_line_out_to_the_program() -> None:
    live = history(FIXTURE).at_peak
    chain = live.filter(pl.col("category") == "attention scores")["chain"][0]

    assert chain.split("\n") == [
        "dev_cases.py:54 manual",
        "dev_cases.py:26 forward",
        "dev_cases.py:40 forward",
        "dev_cases.py:70 step",
        "dev_cases.py:207 main",
        "dev_cases.py:217 <module>",
    ]


def test_the_steps_of_a_history_end_with_the_optimizers() -> None:
    steps = history(FIXTURE).allocations["step"].drop_nulls().unique().sort()

    assert steps.to_list() == [0, 1]


# Drawn histories: one kind of memory each.


def test_what_the_forward_keeps_for_the_backward_are_activations() -> None:
    result = categories(
        f"""
        layer = at::_ops::linear::call, model.py:5 forward, {MODULE}, train.py:9 main
        region   [forward  ][backward ]
        layer     [8M          ]
        layer       [3M  ]
        """
    )

    assert result == {8: "activations", 3: "temporaries"}


def test_what_a_backward_leaves_are_gradients() -> None:
    result = categories(
        f"""
        back = at::_ops::mm::call, MmBackward0::apply, {ENGINE}
        region   [forward  ][backward ][optimizer]
        back                  [8M           ]
        back                  [3M  ]
        """
    )

    assert result == {8: "gradients", 3: "temporaries"}


def test_what_an_optimizer_keeps_is_its_state() -> None:
    result = categories(
        f"""
        state = at::_ops::zeros_like::call, {OPTIMIZER}, train.py:12 main
        region   [forward  ][backward ][optimizer][forward  ]
        state                           [8M
        state                           [3M  ]
        """
    )

    assert result == {8: "optimizer state", 3: "temporaries"}


def test_a_softmax_without_a_batched_matmul_of_its_size_is_not_attention() -> None:
    """Such as that of a router, which chooses experts."""
    drawing = """
        matmul = at::_ops::{0}::call, model.py:5 route, {1}, train.py:9 main
        softmax = at::_ops::_softmax::call, model.py:6 route, {1}, train.py:9 main
        region   [forward            ][backward ]
        matmul    [8M                    ]
        softmax      [8M                    ]
        """

    assert categories(drawing.format("mm", MODULE)) == {8: "activations"}
    assert categories(drawing.format("bmm", MODULE)) == {8: "attention scores"}


def test_the_matmul_of_scores_and_values_is_not_one_of_them() -> None:
    result = categories(
        f"""
        matmul = at::_ops::bmm::call, model.py:5 attend, {MODULE}, train.py:9 main
        softmax = at::_ops::_softmax::call, model.py:6 attend, {MODULE}, train.py:9 main
        values = at::_ops::bmm::call, model.py:7 attend, {MODULE}, train.py:9 main
        region   [forward            ][backward ]
        matmul    [8M                    ]
        softmax      [8M                    ]
        values          [2M                    ]
        """
    )

    assert result == {8: "attention scores", 2: "activations"}


def test_what_is_sent_to_other_gpus_are_communication_buffers() -> None:
    result = categories(
        """
        bucket = c10d::Reducer::initialize_buckets, train.py:4 main
        region   [forward  ][backward ]
        bucket    [8M
        """
    )

    assert result == {8: "communication buffers"}


def test_modules_that_are_moved_to_the_gpu_are_weights() -> None:
    result = categories(
        """
        moved = at::_ops::to::call, torch/nn/modules/module.py:9 _apply, train.py:3 main
        moved     [8M
        """
    )

    assert result == {8: "weights"}


def test_fp32_states_are_twice_their_16_bit_weights() -> None:
    snapshot = load_history(
        f"""
        back = at::_ops::mm::call, MmBackward0::apply, {ENGINE}
        region       [forward  ][backward ][optimizer]
        a           <8M
        b           <16M
        c           <16M
        back                      [8M           ]
        """
    )

    assert at_peak(snapshot) == {"weights": 8, "optimizer state": 32, "gradients": 8}


def confidence(before: int, gradients: int) -> set[str]:
    """Return how certain it is what blocks of one size are, with these gradients."""
    lines = [
        f"back = at::_ops::mm::call, MmBackward0::apply, {ENGINE}",
        "region       [forward  ][backward ][optimizer]",
        *(f"kept{at:<8}<8M" for at in range(before)),
        *["back                      [8M           ]"] * gradients,
    ]
    snapshot = load_history("\n".join(lines))
    rows = History(snapshot).allocations.filter(
        pl.col("alloc").is_null(), pl.col("category") != "unknown"
    )
    return set(rows["confidence"])


def test_sizes_that_do_not_add_up_are_guesses() -> None:
    """An expert without tokens gets no gradient: then there are weights without one."""
    assert confidence(before=12, gradients=4) == {"likely"}
    assert confidence(before=11, gradients=4) == {"guess"}


def test_without_a_history_or_stacks_nothing_is_known() -> None:
    snapshot = load_history("weights <8M")

    assert at_peak(snapshot) == {"unknown": 8}


def test_without_a_backward_what_was_there_before_is_guessed_to_be_weights() -> None:
    snapshot = load_history(
        f"""
        layer = at::_ops::linear::call, model.py:5 forward, {MODULE}
        region   [forward  ]
        weights <8M
        layer     [3M ]
        """
    )
    rows = History(snapshot).allocations

    assert rows.select("category", "confidence").rows() == [
        ("weights", "guess"),
        ("temporaries", "certain"),
    ]


def test_with_stacks_of_python_alone_what_has_none_is_of_autograds_threads(
    tmp_path: Path,
) -> None:
    content = draw_history(
        f"""
        layer = model.py:5 forward, {MODULE}, train.py:9 main
        update = {OPTIMIZER}, train.py:12 main
        layer     [8M            ]
        autograd           [3M           ]
        autograd            [2M ]
        update                      [1M ]
        """
    )
    for event in content["device_traces"][0]:
        if event.get("frames", [{}])[0].get("name") == "autograd":
            del event["frames"]
    path = tmp_path / "python.pickle"
    path.write_bytes(pickle.dumps(content))

    rows = History(read_snapshot(path)).allocations.select("size", "category")

    assert {round(size / MIB): name for size, name in rows.iter_rows()} == {
        8: "activations",
        3: "gradients",
        2: "temporaries",
        1: "temporaries",
    }


def test_addresses_that_are_used_again_are_other_lives() -> None:
    rows = History(load_history("train.py:3 main [8M  ][8M  ][8M")).allocations

    assert rows["address"].n_unique() == 1
    assert rows["alloc"].n_unique() == 3
    assert rows["free"].null_count() == 1


# Over time.


def test_the_categories_add_up_to_the_curve_at_all_times() -> None:
    curve = history(FIXTURE).curve
    moments = highest_moments(curve, 200)

    table = timeline(category_curves(history(FIXTURE).allocations), moments["event"])

    sums = dict(table.group_by("event").agg(pl.sum("size")).iter_rows())
    for event, allocated in moments.select("event", "allocated").iter_rows():
        assert sums[event] == allocated


def test_no_peak_is_lost_between_the_moments_of_a_timeline() -> None:
    curve = history(FIXTURE).curve

    for count in (1, 7, 100, 5000):
        moments = highest_moments(curve, count)
        assert moments.height == count
        assert moments["allocated"].max() == curve["allocated"].max()


# Modules, from the trace.


def test_the_trace_of_the_run_knows_the_modules() -> None:
    trace = loaded(path_of("attn_manual.trace.json.gz"))

    table = History(read(FIXTURE), trace).at_peak

    by_op = dict(
        table.filter(pl.col("module").is_not_null())
        .select(pl.col("op").cast(pl.String), "module")
        .unique(maintain_order=True)
        .iter_rows()
    )
    assert by_op["softmax"] == "LM/Block"
    assert by_op["embedding"] == "LM/Embedding"
    assert by_op["layer_norm"] == "LM/LayerNorm"


# Scaling.


def laws(*sizes: dict[str, int], values: tuple[float, ...]) -> dict[str, str]:
    """Return the law of each kind of memory, drawn with these MiB at each value."""
    summaries = [
        next(summarise_memory(History(_model(**size)), "drawn")) for size in sizes
    ]
    return {growth.category: growth.law for growth in memory_scaling(summaries, values)}


def _model(weights: int, layer: int, scores: int) -> Snapshot:
    return load_history(
        f"""
        back = at::_ops::mm::call, MmBackward0::apply, {ENGINE}
        layer = at::_ops::linear::call, model.py:4 forward, {MODULE}
        matmul = at::_ops::bmm::call, model.py:5 attend, {MODULE}
        softmax = at::_ops::_softmax::call, model.py:6 attend, {MODULE}
        region       [forward                ][backward     ][optimizer]
        w           <{weights}M
        layer         [{layer}M                      ]
        matmul           [{scores}M  ]
        softmax             [{scores}M               ]
        back                                    [{weights}M                ]
        """
    )


@pytest.mark.real
def test_each_kind_of_memory_has_its_law() -> None:
    result = laws(
        {"weights": 64, "layer": 20, "scores": 8},
        {"weights": 64, "layer": 40, "scores": 32},
        {"weights": 64, "layer": 80, "scores": 128},
        values=(512, 1024, 2048),
    )

    assert result["weights"] == "constant"
    assert result["activations"] == "linear"
    assert result["attention scores"] == "quadratic"


def test_two_values_make_a_law_likely_at_most() -> None:
    result = laws(
        {"weights": 64, "layer": 20, "scores": 8},
        {"weights": 64, "layer": 40, "scores": 32},
        values=(512, 1024),
    )

    assert result["weights"] == "constant"
    assert result["activations"] == "likely linear"
    assert result["attention scores"] == "likely quadratic"


@pytest.mark.real
def test_a_sum_of_two_laws_is_given_its_power() -> None:
    result = laws(
        {"weights": 64, "layer": 10, "scores": 8},
        {"weights": 64, "layer": 30, "scores": 32},
        {"weights": 64, "layer": 110, "scores": 128},
        {"weights": 64, "layer": 300, "scores": 512},
        values=(512, 1024, 2048, 4096),
    )

    assert result["activations"] == "to the power of 1.6"
