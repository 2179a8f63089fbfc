"""The figures of docs/savings.md are those that the benchmark found last."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from captures import read_pairs
from conftest import ROOT
from goldens import assert_block
from savings import FILES, accuracy, compared, each_pair, estimated, read_results

from traceq.common.import_folder import mount

RESULTS = read_results()
PAGE = (ROOT / "docs" / "savings.md").read_text(encoding="utf-8")


@pytest.mark.golden
def test_the_accuracy_is_that_of_the_benchmark() -> None:
    assert_block("savings", accuracy(RESULTS))


@pytest.mark.golden
def test_the_error_of_the_step_before_the_fixes_is_that_of_the_benchmark() -> None:
    assert_block("savings-step", estimated(RESULTS))


@pytest.mark.golden
def test_each_pair_is_shown_with_what_was_predicted() -> None:
    assert_block("savings-pairs", each_pair(RESULTS))


@pytest.mark.golden
def test_fresh_programs_are_shown_with_what_was_predicted() -> None:
    mount(ROOT / "benchmarks" / "fresh", "_fresh_programs")
    text: str = import_module("_fresh_programs.table").table()

    assert_block("savings-fresh", text)


@pytest.mark.parametrize("bound", ["gpu", "host"])
@pytest.mark.parametrize("of", ["after", "after_alone"])
def test_eight_in_ten_measured_results_are_in_the_predicted_range(
    bound: str, of: str
) -> None:
    steps = [getattr(result, of) for result in RESULTS if result.bound == bound]

    assert sum(step.low <= step.true <= step.high for step in steps) >= 0.8 * len(steps)


def test_the_benchmark_has_every_pair_that_is_committed() -> None:
    there = {
        (file, pair.sick)
        for file in FILES
        for pair in read_pairs(ROOT / "benchmarks" / f"{file}.json")
    }

    assert {(result.file, result.pair) for result in RESULTS} == there


def test_the_examples_in_words_are_pairs_of_the_benchmark() -> None:
    text = " ".join(PAGE.split())
    ((before, left, low, high),) = re.findall(
        r"one ([\d.]+) ms step traceq predicts ([\d.]+) ms, range (\d+) to (\d+) ms",
        text,
    )
    ((of, said, was),) = re.findall(
        r"a (\d+) ms step with CUDA graph capture it predicts ([\d.]+) ms,"
        r" and ([\d.]+) ms were measured",
        text,
    )
    shown = {
        (f"{r.before_alone.true:.1f}", f"{r.after.likely:.1f}"): r.after
        for r in RESULTS
    }
    wide = shown[before, left]

    assert (low, high) == (f"{wide.low:.0f}", f"{wide.high:.0f}")
    assert any(
        (of, said, was)
        == (
            f"{result.before_alone.true:.0f}",
            f"{result.after.likely:.1f}",
            f"{after:.1f}",
        )
        for result in RESULTS
        for after in [result.after.true]
    )


@pytest.mark.real
def test_what_the_benchmark_found_last_is_what_it_finds() -> None:
    pairs = {pair.sick: pair for pair in read_pairs(ROOT / "benchmarks" / "pairs.json")}
    (retained,) = (result for result in RESULTS if result.pair == "norm_mismatch")

    results = compared("pairs", pairs["norm_mismatch"]).result

    assert results.bound == retained.bound
    assert results.after.likely == pytest.approx(retained.after.likely, rel=0.001)
    assert results.after_alone.likely == pytest.approx(
        retained.after_alone.likely, rel=0.001
    )
