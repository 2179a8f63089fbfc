"""The networkx graph of a window: its nodes, its edges, and requests it refuses."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from conftest import FIXTURES
from recordings import loaded

from traceq.errors import UsageError
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

DRAWING = """
host     [ProfilerStep#4                                        ][ProfilerStep#5 ]
host      [aten::linear           ][cudaMemsetAsync>3]            [aten::relu   ]
host       [aten::addmm          ]
host        [cudaLaunchKernel>1 ]
host 2                               [AddmmBackward0          ]
host 2                                 [cudaLaunchKernel>2 ]
gpu 7                     [gemm<1  ]            [Memset (Device)<3 ][dgrad<2 ]
gpu 20                                    [stray ]
"""
Node = tuple[str, int]


@cache
def drawn() -> Trace:
    """Return the trace that all graphs here are of."""
    return load_drawn(
        DRAWING,
        {
            "aten::addmm": {"Sequence number": 7, "Fwd thread id": 0},
            "AddmmBackward0": {"Sequence number": 7, "Fwd thread id": 1},
        },
    )


def names(graph: nx.DiGraph[Node]) -> dict[Node, str]:
    return {node: graph.nodes[node]["name"] for node in graph}


def edges(graph: nx.DiGraph[Node], kind: str) -> set[tuple[str, str]]:
    name = names(graph)
    return {
        (name[source], name[target])
        for source, target in graph.edges
        if graph.edges[source, target]["kind"] == kind
    }


def test_a_step_has_its_ops_its_calls_and_what_they_started() -> None:
    result = Counter(
        (kind, name) for (kind, _), name in names(drawn().graph(step=4)).items()
    )

    assert result == {
        ("op", "aten::linear"): 1,
        ("op", "aten::addmm"): 1,
        ("op", "AddmmBackward0"): 1,
        ("call", "cudaLaunchKernel"): 2,
        ("call", "cudaMemsetAsync"): 1,
        ("kernel", "gemm"): 1,
        ("kernel", "Memset (Device)"): 1,
        ("kernel", "dgrad"): 1,
        ("kernel", "stray"): 1,
    }


def test_an_op_leads_to_what_it_called() -> None:
    assert edges(drawn().graph(step=4), "parent") == {
        ("aten::linear", "aten::addmm"),
        ("aten::addmm", "cudaLaunchKernel"),
        ("AddmmBackward0", "cudaLaunchKernel"),
    }


def test_a_call_leads_to_what_it_started() -> None:
    assert edges(drawn().graph(step=4), "launch") == {
        ("cudaLaunchKernel", "gemm"),
        ("cudaLaunchKernel", "dgrad"),
        ("cudaMemsetAsync", "Memset (Device)"),
    }


def test_a_forward_op_leads_to_its_backward() -> None:
    assert edges(drawn().graph(step=4), "backward") == {
        ("aten::addmm", "AddmmBackward0")
    }


def test_a_kernel_leads_to_the_next_of_its_stream() -> None:
    assert edges(drawn().graph(step=4), "stream") == {
        ("gemm", "Memset (Device)"),
        ("Memset (Device)", "dgrad"),
    }


def test_there_are_no_other_edges() -> None:
    graph = drawn().graph(step=4)

    assert {graph.edges[edge]["kind"] for edge in graph.edges} == {
        "parent",
        "launch",
        "backward",
        "stream",
    }


def test_a_node_has_the_columns_of_its_row() -> None:
    kernel = drawn().kernels.row(0, named=True)
    node = drawn().graph(step=4).nodes["kernel", 0]

    assert node == {
        key: kernel[key] for key in ("id", "name", "kind", "stream", "ts", "dur")
    }


def test_under_a_root_there_is_what_it_called_and_nothing_else() -> None:
    root = drawn().ops["name"].to_list().index("aten::linear")

    result = sorted(names(drawn().graph(root=root)).values())

    assert result == ["aten::addmm", "aten::linear", "cudaLaunchKernel", "gemm"]


def test_a_step_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"^there is no step 9; .* are: 4, 5$"):
        drawn().graph(step=9)


def test_a_root_that_does_not_exist_is_refused_with_the_range() -> None:
    with pytest.raises(
        UsageError, match=r"^there is no op 4; ops are numbered 0 to 3$"
    ):
        drawn().graph(root=4)


def test_a_graph_needs_a_step_or_a_root() -> None:
    with pytest.raises(UsageError, match="give a step or a root op"):
        drawn().graph()


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.parent.name)
def test_the_graph_of_a_step_has_no_cycle(path: Path) -> None:
    trace = loaded(path)
    step = trace.steps["step"][-1]

    graph = trace.graph(step=step)

    assert nx.is_directed_acyclic_graph(graph)
    kernels = [row for kind, row in graph if kind == "kernel"]
    assert set(kernels) == set(
        trace.kernels.filter(trace.kernels["step"] == step)["id"]
    )
