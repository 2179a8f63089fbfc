"""Phases of a step without the profiler, and how much they vary."""

from __future__ import annotations

import pytest
from recordings import CAPTURES, loaded, path_of

from traceq.analysis.replay.phases import estimated_phases
from traceq.analysis.summary import summarise
from traceq.analysis.time.phases import by_phase
from traceq.api.regions import regions
from traceq.testing import load_drawn

CAPTURE = "attn_flash"


@pytest.mark.real
def test_estimated_phases_add_up_to_the_measured_step() -> None:
    trace = loaded(path_of(f"{CAPTURE}.trace.json.gz"))
    step_ns = CAPTURES.step_ns(CAPTURE)

    assert sum(estimated_phases(trace, step_ns).values()) == pytest.approx(step_ns)


@pytest.mark.real
def test_python_stacks_make_no_share_of_the_forward() -> None:
    trace = loaded(path_of(f"{CAPTURE}.trace.json.gz"))
    phases = {
        phase.phase: phase
        for phase in summarise(trace, step_ns=CAPTURES.step_ns(CAPTURE)).phases
    }

    forward, step = phases["forward"], phases["step"]
    assert forward.estimated_ns is not None
    assert step.estimated_ns is not None
    recorded = forward.wall_ns / step.wall_ns
    assert forward.estimated_ns / step.estimated_ns < recorded


TWO_STEPS = """
    host   [ProfilerStep#1        ][ProfilerStep#2                  ]
    host    [aten::mm          ]    [aten::mm          ]
    host     [cudaLaunchKernel>1]    [cudaLaunchKernel>2]
    gpu 7              [mm<1      ]             [mm<2              ]
"""


def test_phases_vary_by_their_standard_deviation() -> None:
    (*_, step) = by_phase(load_drawn(TWO_STEPS))

    assert step.std_ns == pytest.approx((step.max_ns - step.min_ns) / 2**0.5)


def test_a_single_step_has_no_standard_deviation() -> None:
    (*_, step) = by_phase(
        load_drawn(TWO_STEPS.replace("ProfilerStep#2", "aten::other   "))
    )

    assert step.std_ns is None


def test_without_gpu_work_nothing_is_estimated() -> None:
    trace = load_drawn("host [ProfilerStep#1      ]\nhost  [aten::mm         ]")

    assert estimated_phases(trace) == {}


@pytest.mark.real
def test_regions_have_the_hosts_time_without_the_profiler() -> None:
    path = path_of("moe_loop.trace.json.gz")
    half, whole = (
        regions(path, by="module", step_ms=step_ms).shown.regions[0].calls
        for step_ms in (40.0, 80.0)
    )

    assert whole["host_estimated"].sum() > half["host_estimated"].sum()
    assert (whole["host_estimated"] <= whole["host"] * 1.001 + 1).all()
