"""Advice to compile: for sizes that vary, beside compiled code, and said by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import outcome, priced_findings
from recordings import CAPTURES, FIXTURE_TRACES, loaded, path_of

from traceq.linter import View, inputs
from traceq.model.recording import Recording
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

CAST = """
    host  [ProfilerStep#1                                                          ]
    host  {around}
    host   [aten::linear                                      ]
    host    [aten::to               ]
    host     [aten::_to_copy       ]
    host      [aten::copy_        ]
    host       [cudaLaunchKernel>1]
    gpu 7                         [bfloat16_copy_kernel_cuda<1]
"""
ARGS = {
    "aten::linear": inputs(
        [[32, 64], [128, 64], [128]], ["c10::BFloat16", "float", "float"]
    ),
    "aten::copy_": inputs(
        [[32, 64], [32, 64], []], ["c10::BFloat16", "float", "Scalar"]
    ),
}


def pointers(finding: Finding) -> list[str]:
    """Return what a finding says of another one with the same fix."""
    return [evidence.name for evidence in finding.evidence if evidence.label == "with"]


def test_sizes_that_vary_are_compiled_for_all_of_them() -> None:
    trace = loaded(FIXTURE_TRACES["moe_dropless"])

    (finding,) = outcome(Recording("experts", trace), "CPY008").findings

    assert "compile the model with dynamic=True, as its sizes vary" in finding.advice
    assert "dynamic=True" in finding.example


def test_a_cache_that_grows_with_each_token_is_of_sizes_that_vary() -> None:
    trace = loaded(path_of("pairs/gen_cudnn.trace.json.gz"))

    (finding,) = outcome(Recording("generate", trace), "NRM002").findings

    assert "compile the model with dynamic=True, as its sizes vary" in finding.advice


@pytest.mark.parametrize(
    ("op", "kernel", "vary"), [("bmm", "gemm", True), ("sum", "redu", False)]
)
def test_sizes_that_values_make_vary_if_a_layer_computes_with_them(
    op: str, kernel: str, *, vary: bool
) -> None:
    drawing = f"""
        host  [ProfilerStep#1          ][ProfilerStep#2                              ]
        host   [aten::mm            ]    [aten::nonzero          ] [aten::{op}       ]
        host    [cudaLaunchKernel>1]      [cudaStreamSynchronize]   [cudaLaunch>2]
        gpu 7                     [k<1]                                 [{kernel}<2]
        """
    new = inputs([[7, 64], [64, 64]], ["float"] * 2)
    trace = load_drawn(drawing, {f"aten::{op}": new, "aten::mm": new})

    assert View(trace).sizes_vary is vary


def test_sizes_that_stay_are_compiled_for_each() -> None:
    trace = loaded(CAPTURES.trace("norm_mismatch"))

    for finding in outcome(Recording("norms", trace), "CPY008", "FUS001").findings:
        assert "dynamic" not in finding.advice
        assert "dynamic" not in finding.example


def test_beside_compiled_code_the_rest_is_to_be_compiled() -> None:
    region = "                                  [Torch-Compiled Region: 0/0]"
    (beside,) = priced_findings(CAST.format(around=region), "CPY008", args=ARGS)
    (alone,) = priced_findings(CAST.format(around=""), "CPY008", args=ARGS)

    assert "compile the function too that these casts are in" in beside.advice
    assert "compile the model" not in beside.advice
    assert not beside.example
    assert "compile the model" in alone.advice
    assert alone.example


def test_sparse_gradients_are_to_be_made_dense_before_compiling() -> None:
    sparse = (
        "                                          [aten::embedding_sparse_backward]"
    )
    (finding,) = priced_findings(CAST.format(around=sparse), "CPY008", args=ARGS)

    assert "make sparse gradients dense (sparse=False) and compile" in finding.advice
    assert not finding.example


def test_of_findings_that_compile_the_most_general_leads() -> None:
    trace = loaded(CAPTURES.trace("norm_mismatch"))

    findings = outcome(Recording("norms", trace)).findings

    said = {
        finding.code: pointers(finding)
        for finding in findings
        if "compile the" in finding.advice
    }
    assert not said.pop("FUS001")
    assert {*said} >= {"CPY008", "NRM003"}
    assert {*map(tuple, said.values())} == {("FUS001: one torch.compile fixes both",)}


def test_of_a_host_bound_step_the_graph_of_the_model_leads() -> None:
    trace = loaded(CAPTURES.trace("memory_leak"))

    result = {
        finding.code: finding for finding in outcome(Recording("leak", trace)).findings
    }

    assert pointers(result["FUS001"]) == ["LCH002: one torch.compile fixes both"]
    assert not pointers(result["LCH002"])


def test_a_finding_that_alone_compiles_names_no_other() -> None:
    trace = loaded(CAPTURES.trace("norm_mismatch"))

    (finding,) = outcome(Recording("norms", trace), "FUS001").findings

    assert not pointers(finding)
