"""The verdict that a page on memory begins with."""

from __future__ import annotations

import pytest
from recordings import CAPTURES

import traceq
from traceq.report.memory.verdict import verdict
from traceq.report.page.views import memory_page

pytestmark = pytest.mark.real


def verdict_on(name: str) -> str:
    (summary,) = traceq.memory(CAPTURES.path(f"{name}.snapshot.pickle.gz")).summaries
    return verdict(summary)


def test_a_leak_comes_first_with_its_line() -> None:
    assert verdict_on("memory_leak").startswith(
        "Each step leaks 32.0 MiB, all at dev_cases.py:168"
    )


def test_a_failed_allocation_comes_first_with_its_size_and_line() -> None:
    text = verdict_on("oom_fragmented")

    assert text.startswith("Out of memory: 512 MiB did not fit at dev_cases.py:198")


def test_free_memory_is_named_with_what_holds_most_of_it() -> None:
    text = verdict_on("graph_rerecord")

    assert "1.52 GiB of the 2.43 GiB reserved" in text
    assert "torch.cuda.empty_cache()" in text


def test_memory_without_a_problem_is_called_so_with_its_peak() -> None:
    text = verdict_on("copies")

    assert text.startswith("No leak, no failed allocation")
    assert "The peak of 1.32 GiB" in text
    assert "55% activations" in text


def test_the_page_on_memory_begins_with_the_verdict() -> None:
    memory_summaries = traceq.memory(
        CAPTURES.path("memory_leak.snapshot.pickle.gz")
    ).summaries

    page = memory_page(memory_summaries)

    assert '<p class="lead">Each step leaks 32.0 MiB' in page
    assert page.index("Each step leaks") < page.index("<svg")
