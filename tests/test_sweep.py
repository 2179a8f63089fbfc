"""Recordings that differ in a label: their sweeps, laws and crossings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recordings import loaded, path_of

from traceq.analysis.sweep import Point, Sweep, point_of, sweeps

if TYPE_CHECKING:
    from collections.abc import Iterable


def point(attention: float, rest: float, **labels: str) -> Point:
    """Return a recording with these milliseconds in attention and in matmuls."""
    return Point(
        name=" ".join(labels.values()),
        labels=labels,
        step_ns=(attention + rest) * 1e6,
        step_from="measured",
        bound="gpu",
        gpu_busy=1.0,
        parts={"attention": attention * 1e6, "gemm": rest * 1e6},
        peak_bytes=round(1e9 + attention * 1e6),
        tokens=4 * float(labels.get("seq_len", "0")),
    )


def lengths(*values: int, slope: float = 20.0) -> Iterable[Point]:
    """Yield recordings whose attention is quadratic, and whose rest is linear."""
    for value in values:
        yield point((value / 512) ** 2, slope * value / 512, seq_len=str(value))


def laws(sweep: Sweep) -> dict[tuple[str, str], str]:
    return {
        (one.figure, one.name): one.fit.law if one.fit else "" for one in sweep.curves
    }


def test_attention_is_quadratic_and_the_rest_linear() -> None:
    (sweep,) = sweeps(list(lengths(2048, 512, 1024)))

    assert sweep.label == "seq_len"
    assert sweep.values == (512, 1024, 2048)
    found = laws(sweep)
    assert found["part", "attention"] == "quadratic"
    assert found["rest", "attention"] == "linear"
    assert found["memory", "peak memory"] == "constant"


@pytest.mark.parametrize("slope", [3.0, 10.0])
def test_attention_overtakes_the_rest_where_the_laws_meet(slope: float) -> None:
    (sweep,) = sweeps(list(lengths(512, 1024, 2048, slope=slope)))

    (found,) = sweep.overtakings
    assert (found.part, found.other) == ("attention", "the rest")
    assert found.at.at == pytest.approx(512 * slope, rel=0.01)
    assert found.at.extrapolated == (512 * slope > 2048)


def test_two_values_have_curves_and_no_laws() -> None:
    (sweep,) = sweeps(list(lengths(512, 1024)))

    assert not sweep.enough
    assert not any(laws(sweep).values())
    assert sweep.overtakings == ()


def test_what_falls_has_no_law() -> None:
    (sweep,) = sweeps(list(lengths(512, 1024, 2048, 8192)))

    assert laws(sweep)["rate", "tokens/s"] == ""


def test_recordings_that_differ_in_two_labels_are_a_sweep_for_each_value() -> None:
    points = [
        point(1, size, seq_len=length, batch=str(size))
        for size in (1, 2)
        for length in ("512", "1024")
    ]

    found = sweeps(points)

    assert [(one.label, dict(one.fixed)) for one in found] == [
        ("seq_len", {"batch": "1"}),
        ("seq_len", {"batch": "2"}),
        ("batch", {"seq_len": "512"}),
        ("batch", {"seq_len": "1024"}),
    ]


def test_labels_that_are_no_numbers_are_no_sweep() -> None:
    assert sweeps([point(1, 1, mode="eager"), point(1, 1, mode="compiled")]) == []


def test_one_recording_is_no_sweep() -> None:
    assert sweeps([point(1, 1, seq_len="512")]) == []


def test_attention_by_hand_is_attention_and_tokens_are_those_of_the_embedding() -> None:
    fused = point_of(loaded(path_of("attn_flash.trace.json.gz")), {})
    by_hand = point_of(loaded(path_of("attn_manual.trace.json.gz")), {})

    assert fused.tokens == by_hand.tokens == 8 * 1024
    assert by_hand.parts["attention"] > 5 * fused.parts["attention"]
    assert by_hand.parts["gemm"] == pytest.approx(fused.parts["gemm"], rel=0.05)
