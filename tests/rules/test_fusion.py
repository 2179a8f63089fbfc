"""FUS: memory-bound ops that a compiler would fuse, on real traces."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from conftest import ROOT
from linting import case_findings, mentions, outcome, rule_module

from traceq import load
from traceq.linter import inputs
from traceq.model.recording import Recording
from traceq.model.run import Rank
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter import Finding
    from traceq.model.lint_report import RecordingReport

MODELS = ROOT / "benchmarks" / "models"
FUSION = ROOT / "benchmarks" / "fusion"
PAIRS = sorted(path.name.partition(".")[0] for path in FUSION.glob("*.eager.json.gz"))
# Every recording of ours that ran kernels of the compiler, with CUDA graphs or without.
COMPILED = [
    *sorted((ROOT / "tests" / "data").rglob("compiled/*/rank-0.trace.json.gz")),
    *sorted(FUSION.glob("*.compiled.json.gz")),
    *sorted((ROOT / "benchmarks" / "options").glob("*.compiled.json.gz")),
    ROOT / "tests" / "data" / "graphs" / "conv" / "rank-0.trace.json.gz",
    ROOT / "tests" / "data" / "serving" / "generate_static_compiled.json.gz",
    *(
        ROOT / "fixtures" / name / "trace.json.gz"
        for name in (
            *("tutorial/5", "graph_replay", "recompile"),
            *("twins/graph_record", "twins/graph_rerecord"),
        )
    ),
]
EAGER = "transformer-eager"
CHAINS = rule_module("fusion._chains")


@cache
def of_model(name: str) -> RecordingReport:
    """Return what all rules say of a recorded model, as far as the trace shows it."""
    return outcome(Recording(name, load(MODELS / f"{name}.trace.json.gz")))


def test_a_program_has_one_finding_of_all_its_chains() -> None:
    (finding,) = (
        item for item in of_model("gpt2_vocabulary").findings if item.code == "FUS001"
    )

    assert mentions(finding, "memory-bound", "fuse")
    assert finding.doubt == "preview"
    assert finding.saves_ns > 0.02 * of_model("gpt2_vocabulary").step_ns


def test_kernels_of_other_findings_are_not_counted_again() -> None:
    findings = of_model("gpt2_vocabulary").findings
    (own,) = (finding for finding in findings if finding.code == "FUS001")
    others = [finding for finding in findings if not finding.residual]

    assert not own.kernels & frozenset[int]().union(
        *(finding.kernels for finding in others)
    )


@pytest.mark.parametrize(
    "path",
    [path for path in COMPILED if path.parent.name != EAGER],
    ids=lambda path: f"{path.parent.name}/{path.name.partition('.json')[0]}",
)
def test_a_compiled_program_has_none(path: Path) -> None:
    trace = load(path)
    names = trace.kernels["name"].cast(pl.String)

    assert names.str.starts_with("triton").any()
    assert outcome(Recording(path.name, trace), "FUS001").findings == ()


@pytest.mark.parametrize("name", PAIRS)
def test_a_program_that_gains_by_compiling_has_one(name: str) -> None:
    measured = json.loads((FUSION / "measured.json").read_text())[name]
    gain = 1 - median(measured["compiled_ms"]) / median(measured["eager_ms"])
    recording = Recording(name, load(FUSION / f"{name}.eager.json.gz"))

    assert gain > 0.02
    assert len(outcome(recording, "FUS001").findings) == 1


def test_a_program_without_long_chains_has_none() -> None:
    assert case_findings("optimizer_fused.trace.json.gz", "FUS001") == ()


def test_findings_explain_most_of_the_losses_of_a_gpu_bound_step() -> None:
    gpu = of_model("gpt2_eager").gpu

    assert gpu is not None
    assert gpu.share > 0.8
    assert gpu.explained_ns <= gpu.above_ns <= gpu.busy_ns


def test_a_host_bound_step_has_no_account_of_gpu_losses() -> None:
    assert of_model("t5_norms").gpu is None


def test_a_fix_that_saves_time_after_another_says_so() -> None:
    report = of_model("t5_norms")
    (later,) = (finding for finding in report.findings if finding.after)

    assert (later.code, later.after, later.minor) == ("ATT001", ("LCH002",), "")
    assert later.saves_ns > 0.02 * report.step_ns > (later.saves_alone_ns or 0)
    assert report.together[-1].step_ns == report.step_ns - sum(
        finding.saves_after_ns or 0 for finding in report.findings
    )


def test_a_torch_without_a_compiler_is_to_be_upgraded_first() -> None:
    findings = case_findings("public/v100_resnet50_workers0.json.gz", "FUS001")

    assert [finding.advice.startswith("upgrade torch") for finding in findings] == [
        True
    ]


@pytest.mark.real
def test_a_wait_that_costs_time_after_other_fixes_is_in_the_plan() -> None:
    report = outcome(Recording("3", load(ROOT / "fixtures/tutorial/3/trace.json.gz")))
    (sync,) = (finding for finding in report.findings if finding.code == "SYN001")

    assert sync.after
    assert sync.saves_ns > 0.02 * report.together[-1].step_ns


def test_the_place_is_where_the_library_saves_most() -> None:
    findings = of_model("llama_eager").findings
    (own,) = (finding for finding in findings if finding.code == "FUS001")
    (chain,) = (evidence for evidence in own.evidence if evidence.label == "chain")

    # Once it was the first function of the library, which checks for packed sequences.
    assert "apply_rotary_pos_emb (transformers/" in (own.place.via or "")
    assert "neg" in str(chain)


def test_lines_that_save_next_to_nothing_are_not_named() -> None:
    (own,) = (
        finding
        for finding in of_model("gpt2_vocabulary").findings
        if finding.code == "FUS001"
    )
    lines = [
        evidence.value or 0 for evidence in own.evidence if evidence.label == "line"
    ]

    assert min(lines) > 0.05 * max(lines)


def test_a_loop_over_parameters_is_left_to_its_own_finding() -> None:
    findings = of_model("averaged_weights").findings
    (loop,) = (finding for finding in findings if finding.code == "LCH001")
    (chains,) = (finding for finding in findings if finding.code == "FUS001")

    assert loop.kernels
    assert not chains.kernels & loop.kernels


def test_compiling_a_host_bound_model_includes_what_it_fuses() -> None:
    findings = of_model("averaged_weights").findings
    (graph,) = (finding for finding in findings if finding.code == "LCH002")
    (chains,) = (finding for finding in findings if finding.code == "FUS001")

    shares = {fix.kernel_share for fix in graph.fixes if len(fix.kernels)}
    assert len(shares) > 1
    assert chains.minor


# A model runs a chain of ops; the host reads a value in it, or after it.
CHAIN = """
    host   [ProfilerStep#1                                                           {}]
    host    [train.py(3): step                                                       {}]
    host     [MODEL                                                       {}]
    host      [aten::mul       ] [aten::tanh      ] [aten::add       ] {}
    host      [cuLaunchKernel>1] [cuLaunchKernel>2] [cuLaunchKernel>3]
    gpu 7                    [mul<1            ] [tanh<2          ] [add<3           ]
"""
H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 1}
LARGE = [1024, 1024]
OPS = {
    "aten::mul": inputs([LARGE, []], ["float", "Scalar"]),
    "aten::tanh": inputs([LARGE], ["float"]),
    "aten::add": inputs([LARGE, []], ["float", "Scalar"]),
}
READ = "[aten::_local_scalar_dense]"


def breaks(model: str, *, inside: bool) -> list[str]:
    """Return what ends a graph of a model by which, or after which, a value is read."""
    more = " " * len(READ)
    drawing = CHAIN.format(more, more, more if inside else "", READ if inside else "  ")
    if not inside:
        after = "cuLaunchKernel>3]"
        drawing = drawing.replace(after, f"{after}  {READ}")
    drawing = drawing.replace("MODEL".ljust(len(model)), model)
    trace = load_drawn(drawing, OPS, device=H200)
    (finding,) = outcome(Recording("drawn", trace), "FUS001").findings
    return [
        evidence.name for evidence in finding.evidence if evidence.label == "breaks"
    ]


@pytest.mark.parametrize("model", ["nn.Module: Model_0", "model.py(9): forward"])
def test_only_what_the_compiled_code_reads_ends_a_graph(model: str) -> None:
    value = ["aten::_local_scalar_dense: a value that the host reads"]

    assert breaks(model, inside=True) == value
    assert breaks(model, inside=False) == []


@pytest.mark.parametrize(
    ("line", "itself"),
    [
        ("return x * torch.sigmoid(x)", True),
        ("return self.x * self.x.sigmoid()", True),
        ("h = F.sigmoid(h) * h", True),
        ("return x * torch.sigmoid(gate)", False),
        ("return a.x * torch.sigmoid(x)", False),
        ("return torch.sigmoid(x) * x.grad", False),
        ("return x * torch.sigmoid(x.grad)", False),
    ],
)
def test_only_a_value_times_its_own_sigmoid_is_a_silu(
    line: str, *, itself: bool
) -> None:
    assert bool(CHAINS.OWN_SIGMOID.search(line)) is itself


def test_a_tanh_in_a_chain_is_a_gelu_with_tanh() -> None:
    drawing = CHAIN.format("", "", "", "").replace("aten::add", "aten::pow")
    drawing = drawing.replace("MODEL".ljust(20), "model.py(9): forward")
    ops = {**OPS, "aten::pow": OPS["aten::add"]}
    trace = load_drawn(drawing, ops, device=H200)

    (finding,) = outcome(Recording("drawn", trace), "FUS001").findings

    assert finding.advice.endswith('or call `F.gelu(x, approximate="tanh")` here')


@pytest.mark.parametrize(
    ("dims", "dim", "call"),
    [
        ([8, 512, 1024], "[-1]", "F.layer_norm"),
        ([8, 512, 1024], "[2]", "F.layer_norm"),
        ([8, 512, 1024], "[1]", ""),
        ([8, 512, 1024], "[1, 2]", "F.group_norm"),
        ([8, 512, 32, 32], "[2, 3]", "F.instance_norm"),
        ([8, 512, 32, 32], "[0, 2, 3]", ""),
    ],
)
def test_a_norm_is_called_that_is_over_the_same_dims(
    dims: list[int], dim: str, call: str
) -> None:
    """``(x - x.mean(dims)) / x.var(dims)``, as in norms of speech models."""
    drawing = CHAIN.format("", "", "", "").replace("aten::mul ", "aten::mean")
    drawing = drawing.replace("aten::tanh", "aten::var ")
    drawing = drawing.replace("aten::add", "aten::sub")
    drawing = drawing.replace("MODEL".ljust(20), "model.py(9): forward")
    by = inputs([dims, []], ["float", "ScalarList"], None, ["", dim])
    ops = {"aten::mean": by, "aten::var": by, "aten::sub": inputs([dims], ["float"])}
    trace = load_drawn(drawing, ops, device=H200)

    (finding,) = outcome(Recording("drawn", trace), "FUS001").findings

    assert re.findall(r"`(F\.\w+)", finding.advice) == [call] * bool(call)


def test_the_place_is_a_line_of_the_program_where_one_is_known() -> None:
    """Sums of several gradients, which are of no line, may save more than any line."""
    drawing = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                    ]
    host     [aten::mul       ] [aten::tanh      ]
    host     [cuLaunchKernel>1] [cuLaunchKernel>2]
    host 2                                           [AddBackward0          ]
    host 2                                           [aten::add_            ]
    host 2                                           [cuLaunch>3]
    gpu 7                   [mul<1       ] [tanh<2  ] [add<3                          ]
    """
    ops = {**OPS, "aten::add_": inputs([LARGE, LARGE], ["float", "float"])}
    trace = load_drawn(drawing, ops, device=H200)

    (finding,) = outcome(Recording("drawn", trace), "FUS001").findings

    assert (finding.place.file, finding.place.line) == ("model.py", 9)


def activation(*ops: str) -> dict[str, Any]:
    """Draw a function that calls ops: times, plus, over and power take a number."""
    numbers = {"times": "mul", "plus": "add", "over": "div", "power": "pow"}
    width = 24
    calls = "".join(
        f"[aten::{numbers.get(op, op)}".ljust(width - 1) + "]" for op in ops
    )
    launches = "".join(f"[cuLaunch>{at}]".ljust(width) for at, _ in enumerate(ops, 1))
    kernels = "".join(f"[k<{at}".ljust(width - 1) + "]" for at, _ in enumerate(ops, 1))
    trace = draw(
        f"""
        host   [ProfilerStep#1{" " * len(calls)}]
        host    [net.py(1): act{" " * (len(calls) - 8)}]
        host     {calls}
        host      {launches}
        gpu 7           {kernels}
        """
    )
    shape = [8, 1024, 768]
    called = [
        event for event in trace["traceEvents"] if event["name"].startswith("aten::")
    ]
    for event, op in zip(called, ops, strict=True):
        number = op in numbers
        value = {"power": "3."}.get(op, "")
        event["args"] |= {
            "Input Dims": [shape, [] if number else shape],
            "Input type": ["float", "double" if number else "float"],
            "Concrete Inputs": ["", value],
        }
    return trace


def written(
    folder: Path, *ops: str, source: str = "", line: int = 2
) -> tuple[Finding, ...]:
    """Return what FUS002 finds in such a function, with its source if there is one."""
    file = folder / "drawn.json"
    file.write_text(json.dumps(activation(*ops)), encoding="utf-8")
    trace = load(file)
    if source:
        ops_at = trace.ops.with_columns(call_line=pl.lit(line, pl.UInt32))
        sources = {"net.py": source}
        rank = Rank("rank-0", 0, "done", None, None, None, (), sources=sources)
        trace = replace(trace, ops=ops_at, rank=rank)
    return outcome(Recording("drawn", trace), "FUS002").findings


CUBE = ("times", "power", "times", "add", "times", "tanh", "plus", "mul")


@pytest.mark.parametrize(
    ("ops", "call"),
    [
        (CUBE, 'F.gelu(x, approximate="tanh")'),
        (
            ("power", "times", "add", "times", "tanh", "plus", "times", "mul"),
            'F.gelu(x, approximate="tanh")',
        ),
        (("times", "over", "erf", "plus", "mul"), "F.gelu(x)"),
        (("over", "erf", "plus", "times", "mul"), "F.gelu(x)"),
        (("erf", "plus", "mul"), None),
        (("times", "tanh", "plus", "mul"), None),
        (("sigmoid", "mul"), None),
    ],
)
def test_an_activation_is_known_by_the_order_of_its_ops(
    ops: tuple[str, ...], call: str | None, tmp_path: Path
) -> None:
    findings = written(tmp_path, *ops)

    assert [finding.data["call"] for finding in findings] == ([call] if call else [])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def act(x):\n    return x*torch.sigmoid(x)\n", True),
        ("def act(x, g):\n    return x * torch.sigmoid(g)\n", False),
    ],
)
def test_a_silu_is_known_by_its_source_alone(
    source: str, *, found: bool, tmp_path: Path
) -> None:
    findings = written(tmp_path, "sigmoid", "mul", source=source)

    assert [finding.data["call"] for finding in findings] == ["F.silu(x)"] * found


@pytest.mark.parametrize(("number", "found"), [("0.044715", True), ("0.5", False)])
def test_the_approximation_has_its_number_where_the_source_is_there(
    number: str, *, found: bool, tmp_path: Path
) -> None:
    source = f"def act(x):\n    return half * x + {number} * x ** 3\n"

    findings = written(tmp_path, *CUBE, source=source)

    assert len(findings) == found
    assert not any("if its numbers are" in finding.advice for finding in findings)
    (unseen,) = written(tmp_path, *CUBE)
    assert "if its numbers are 0.044715" in unseen.advice


def test_an_activation_by_hand_costs_the_host_its_ops_too(tmp_path: Path) -> None:
    (finding,) = written(tmp_path, *CUBE)

    kernels, host = finding.fixes
    assert kernels.kernel_share >= 0.5
    # Of eight launches one and a half stay.
    assert host.host_share == pytest.approx(1 - 1.5 / 8)
    assert finding.host_ns > 0
    assert finding.effort == "edit"


def test_the_gelu_of_a_library_is_a_switch_of_its_config() -> None:
    (finding,) = (
        item for item in of_model("gpt2_eager").findings if item.code == "FUS002"
    )

    assert "gelu_pytorch_tanh" in finding.advice
    assert "your own version" not in finding.advice
