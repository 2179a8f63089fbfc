"""Number of trained parameters."""

from __future__ import annotations

import pytest
from recordings import loaded, path_of

from traceq.analysis.patterns.parameters import trained_parameters
from traceq.linter import inputs
from traceq.testing import load_drawn

BACKWARD = """
    host   [ProfilerStep#1                                                        ]
    host    [aten::mm]                                {again}
    host 2             [torch::autograd::AccumulateGrad]             [torch::autograd::AccumulateGrad]
"""  # noqa: E501 - two backward passes
GRADIENT = {"torch::autograd::AccumulateGrad": inputs([[64, 32]], ["float"])}


def test_the_gradients_of_one_backward_are_the_parameters() -> None:
    trace = load_drawn(BACKWARD.format(again=""), GRADIENT)

    assert trained_parameters(trace) == 2 * 64 * 32


def test_a_second_forward_begins_another_backward() -> None:
    trace = load_drawn(BACKWARD.format(again="[aten::mm]"), GRADIENT)

    assert trained_parameters(trace) == 64 * 32


def test_without_shapes_the_parameters_are_unknown() -> None:
    assert trained_parameters(load_drawn(BACKWARD.format(again=""))) is None


@pytest.mark.real
def test_the_parameters_of_a_real_model_are_counted() -> None:
    trace = loaded(path_of("attn_flash.trace.json.gz"))

    # 4 layers of 12 * 768**2 weights and two norms, a norm, and two tables of 32,000.
    layers = 4 * (12 * 768**2 + 2 * 2 * 768) + 2 * 768
    assert trained_parameters(trace) == pytest.approx(layers + 2 * 32_000 * 768, 1e-3)
