"""Phase of an op, with and without regions that name it."""

from __future__ import annotations

import polars as pl

from traceq.testing import load_drawn


def phases(drawing: str) -> dict[str, str]:
    """Return the phases of the ops by name."""
    ops = load_drawn(drawing).ops
    return dict(ops.select(pl.col("name").cast(pl.String), "phase").iter_rows())


def test_regions_say_the_phase() -> None:
    result = phases(
        """
        host   [ProfilerStep#1                                               ]
        host    [@FORWARD      ][@BACKWARD      ][@OPTIMIZER     ]
        host     [aten::mm   ]   [aten::mul    ]  [aten::add_   ] [aten::item]
        """
    )

    assert result == {
        "aten::mm": "forward",
        "aten::mul": "backward",
        "aten::add_": "optimizer",
        "aten::item": "other",
    }


def test_without_regions_autograd_and_the_optimizer_say_the_phase() -> None:
    result = phases(
        """
        host     [ProfilerStep#1                                                   ]
        host      [aten::mm   ]                 [Optimizer.step#SGD.step] [aten::item]
        host                                     [aten::add_   ]
        host 2                 [AddmmBackward0 ]
        host 2                  [aten::mul    ]
        """
    )

    assert result == {
        "aten::mm": "forward",
        "AddmmBackward0": "backward",
        "aten::mul": "backward",
        "aten::add_": "optimizer",
        "aten::item": "other",
    }


def test_all_on_autograds_own_thread_is_backward() -> None:
    result = phases(
        """
        host    [aten::mm]
        host 2            [AddmmBackward0 ][aten::add_  ][MulBackward0 ]
        """
    )

    assert result["aten::add_"] == "backward"


def test_a_backward_on_the_thread_of_the_forward_is_told_by_its_ops() -> None:
    result = phases(
        """
        host   [aten::mm] [aten::sum] [aten::abs] [AddmmBackward0 ] [aten::item]
        host                                       [aten::mul    ]
        """
    )

    assert result["aten::mm"] == "forward"
    assert result["aten::mul"] == "backward"
    assert result["aten::item"] == "other"


def test_a_thread_is_autograds_own_only_if_no_forward_runs_on_it() -> None:
    name = "autograd::engine::evaluate_function: MmBackward0"
    trace = load_drawn(
        f"""
        host  [aten::mm][{name}]
        host             [MmBackward0][aten::t][aten::mm_][aten::t]
        """,
        {
            "aten::mm": {"Sequence number": 1, "Fwd thread id": 0},
            name: {"Sequence number": 1, "Fwd thread id": 1},
        },
    )

    phases = dict(trace.ops.select("name", "phase").iter_rows())
    assert phases["aten::mm"] == "forward"
    assert phases["aten::t"] == "backward"


def test_without_a_backward_all_is_forward() -> None:
    assert phases("host   [aten::mm] [aten::item]") == {
        "aten::mm": "forward",
        "aten::item": "forward",
    }


def test_each_step_has_its_own_backward() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                          ][ProfilerStep#2             ]
        host    [aten::mm] [MmBackward0] [aten::item   ]  [aten::mm] [MmBackward0]
        """
    )

    # After it the step is over; a backward of the next step does not matter.
    assert trace.ops["phase"].to_list() == [
        "forward",
        "backward",
        "other",
        "forward",
        "backward",
    ]


def test_loading_data_is_its_own_phase() -> None:
    result = phases(
        """
        host   [enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__] [aten::mm]
        host      [aten::stack]
        """
    )

    assert result == {"aten::stack": "data", "aten::mm": "forward"}


def test_what_a_backward_computes_again_is_backward() -> None:
    result = phases(
        """
        host     [aten::mm  ]
        host 2                [CheckpointFunctionBackward        ]
        host 2                 [nn.Module: Block_0             ]
        host 2                  [@forward                     ]
        host 2                   [aten::relu                 ]
        """
    )

    assert result["aten::relu"] == "backward"


def test_a_model_called_by_the_optimizer_is_forward() -> None:
    result = phases(
        """
        host     [Optimizer.step#LBFGS.step                                     ]
        host      [nn.Module: Net_0 ][@forward    ]                [aten::add_ ]
        host        [aten::mm     ]   [aten::relu ]
        host 2                                      [MmBackward0 ]
        """
    )

    assert result == {
        "aten::mm": "forward",
        "aten::relu": "forward",
        "MmBackward0": "backward",
        "aten::add_": "optimizer",
    }


def test_an_optimizer_inside_a_backward_is_the_optimizer() -> None:
    result = phases(
        """
        host     [aten::mm  ]
        host 2                [torch::autograd::AccumulateGrad       ]
        host 2                 [Optimizer.step#SGD.step            ]
        host 2                   [aten::add_                    ]
        """
    )

    assert result["aten::add_"] == "optimizer"


def test_gpu_work_is_of_the_phase_of_its_launch_even_outside_of_ops() -> None:
    trace = load_drawn(
        """
        host   [@BACKWARD                             ]
        host    [aten::mul         ][cudaMemsetAsync>2]
        host    [cudaLaunchKernel>1]
        gpu 7                  [mul<1]            [loose<2]
        """
    )

    assert trace.kernels["op"].to_list() == [0, None]
    assert trace.kernels["phase"].to_list() == ["backward", "backward"]


def test_a_closure_that_an_optimizer_calls_is_no_part_of_it() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                                ]
        host    [Optimizer.step#LBFGS.step                                   ]
        host     [aten::mm             ]                      [aten::add_  ]
        host      [cudaLaunchKernel>1]
        host 2                           [MmBackward0 ]
        gpu 7                   [gemm<1]
        """,
        {"aten::mm": {"Sequence number": 1, "Fwd thread id": 0}},
    )

    result = dict(trace.ops.select(pl.col("name").cast(pl.String), "phase").iter_rows())
    assert result == {
        "aten::mm": "forward",
        "MmBackward0": "backward",
        "aten::add_": "optimizer",
    }
    assert trace.kernels["phase"].to_list() == ["forward"]
