"""Eager against compiled: what torch.compile did to each module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import traceq as run
from diffing import diff_of, drawn_diff

import traceq
from traceq.differ.modules import ModuleChange, ModuleChanges
from traceq.model.run import CompiledPlace
from traceq.report.diff import modules as words

pytestmark = pytest.mark.real

DATA = Path(__file__).parent / "data" / "compiled"
EAGER, COMPILED = DATA / "transformer-eager", DATA / "transformer"


@pytest.fixture(scope="module")
def real() -> ModuleChanges:
    module_changes = diff_of(
        traceq.load(EAGER, cache=False), traceq.load(COMPILED, cache=False)
    ).modules
    assert module_changes is not None
    return module_changes


def by_name(changes: ModuleChanges) -> dict[str, ModuleChange]:
    return {row.module: row for row in changes.rows}


def test_layers_of_one_class_are_one_row_under_the_same_name(
    real: ModuleChanges,
) -> None:
    rows = [row for row in real.rows if row.module.startswith("Transformer")]

    assert all(row.before.ns > 0 and row.after.ns > 0 for row in rows)
    assert not [row.module for row in rows if "_" in row.module]


def test_norms_written_by_hand_are_fused(real: ModuleChanges) -> None:
    norm = by_name(real)["Transformer/Block/Norm"]

    assert norm.became == "fused"
    assert norm.after.kernels < norm.before.kernels / 4
    assert norm.after.ns < norm.before.ns / 4
    assert (norm.before.compiled, norm.after.compiled) == (0, 1)


def test_matmuls_are_the_same(real: ModuleChanges) -> None:
    assert by_name(real)["Transformer/Block/MLP/Linear"].became == "same"


def test_what_is_outside_of_the_compiled_model_is_uncompiled(
    real: ModuleChanges,
) -> None:
    assert by_name(real)["Optimizer.step"].became == "uncompiled"
    assert by_name(real)["in main (compiled.py)"].became == "uncompiled"


@pytest.mark.slow
def test_the_rows_add_up_to_the_gpus_time_and_kernels() -> None:
    document = json.loads(run("diff", EAGER, COMPILED, "--format", "json").out)

    for side in ("before", "after"):
        rows = [row[side] for row in document["modules"]["rows"]]
        busy = document["metrics"]["gpu_busy_ns"][side]
        assert sum(row["gpu_ns"] for row in rows) == pytest.approx(busy, rel=1e-6)
        kernels = document["metrics"]["kernels"][side]
        assert sum(row["kernels"] for row in rows) == pytest.approx(kernels)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["full", "markdown", "html"])
def test_people_read_the_table_in_every_format(form: str) -> None:
    text = run("diff", EAGER, COMPILED, "--format", form).out

    assert words.TITLE in text
    assert "Transformer/Block/Norm" in text
    assert "fused" in text
    assert "compared as a whole" not in text


def test_the_words_are_on_compiling_whichever_side_is_compiled(
    real: ModuleChanges,
) -> None:
    back = diff_of(
        traceq.load(COMPILED, cache=False), traceq.load(EAGER, cache=False)
    ).modules

    assert back is not None
    assert back.compiled_side == "before"
    assert {row.module: row.became for row in back.rows} == {
        row.module: row.became for row in real.rows
    }


def test_what_a_graph_break_left_uncompiled_fell_back() -> None:
    broken = traceq.load(DATA / "break", cache=False)
    module_changes = diff_of(traceq.load(EAGER, cache=False), broken).modules

    assert module_changes is not None
    fell = {row.module for row in module_changes.rows if row.became == "fell back"}
    assert fell == {"Transformer/Embedding", "Transformer/Linear"}
    (note,) = words.notes(module_changes)
    assert note.startswith("graph break at compiled.py:60 forward: ")


EAGER_DRAWN = """
host   [ProfilerStep#1                                                        ]
host    [nn.Module: Net_0                                                    ]
host     [nn.Module: Norm_0     ]                  [nn.Module: Head_0       ]
host      [aten::mul           ]                    [aten::mm              ]
host       [cudaLaunchKernel>1]                      [cudaLaunchKernel>2]
gpu 7                      [mul<1   ]                                [gemm<2]
"""
COMPILED_DRAWN = """
host   [ProfilerStep#1                                                        ]
host    [nn.Module: Net_0                                                    ]
host     [nn.Module: Norm_0           ]            [nn.Module: Head_0       ]
host      [Torch-Compiled Region: 0/0]              [aten::mm              ]
host       [cuLaunchKernel>1]                        [cudaLaunchKernel>2]
gpu 7                      [t<1]                                    [gemm<2]
"""


def test_a_module_that_runs_eager_beside_compiled_ones_fell_back() -> None:
    module_changes = drawn_diff(EAGER_DRAWN, COMPILED_DRAWN).modules

    assert module_changes is not None
    became = {row.module: row.became for row in module_changes.rows}
    assert became == {"Net/Norm": "faster", "Net/Head": "fell back"}


def test_two_eager_programs_have_no_such_table() -> None:
    assert drawn_diff(EAGER_DRAWN, EAGER_DRAWN).modules is None


def test_a_graph_whose_capture_is_not_known_has_no_modules() -> None:
    replayed = COMPILED_DRAWN.replace("[cuLaunchKernel>1]", "[cudaGraphLaunch>1]")

    diff = drawn_diff(EAGER_DRAWN, replayed)

    assert diff.modules is None
    assert any("compared as a whole" in caveat for caveat in diff.caveats)


def test_a_graph_break_is_named_where_a_module_fell_back() -> None:
    module_changes = drawn_diff(EAGER_DRAWN, COMPILED_DRAWN).modules
    assert module_changes is not None
    broken = CompiledPlace("net.py", 9, "forward", "Dynamic shape operator", 1)

    (note,) = words.notes(ModuleChanges(module_changes.rows, "after", (broken,)))

    assert note == "graph break at net.py:9 forward: Dynamic shape operator"
