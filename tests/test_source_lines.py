"""Place of each op in the user's own code."""

from __future__ import annotations

import polars as pl

from traceq.testing import load_drawn

PLACE = ("file", "line", "function")
NOWHERE = (None, None, None)

STACK = """
host   [train.py(3): main                                                    ]
host    [nn.Module: Model_0                                                 ]
host     [model.py(10): forward                                            ]
host      [nn.Module: Block_3                                             ]
host       [model.py(30): attend               ]  [nn.Module: MLP_3      ]
host        [nn.Module: Attention_3           ]    [aten::gelu         ]
host         [torch/nn/functional.py(5): sdpa]
host          [<built-in function softmax>  ]
host           [aten::softmax              ]
"""


def test_a_module_is_named_by_the_path_of_modules_around_it() -> None:
    ops = load_drawn(STACK).ops

    assert dict(ops.select(pl.col("name", "module").cast(pl.String)).iter_rows()) == {
        "aten::softmax": "Model_0/Block_3/Attention_3",
        "aten::gelu": "Model_0/Block_3/MLP_3",
    }


def test_the_source_is_the_first_frame_outside_of_libraries() -> None:
    ops = load_drawn(STACK).ops

    assert ops.select(PLACE).rows() == [
        ("model.py", 30, "attend"),
        ("model.py", 10, "forward"),
    ]


def test_calls_and_kernels_are_from_where_their_op_is() -> None:
    trace = load_drawn(
        """
        host   [train.py(3): main              ]
        host    [nn.Module: Linear_0          ]
        host     [aten::mm                   ]
        host      [cudaLaunchKernel>1       ]
        gpu 7                     [gemm<1 ]
        """
    )

    for table in (trace.runtime, trace.kernels):
        assert table.select("module", *PLACE).rows() == [
            ("Linear_0", "train.py", 3, "main")
        ]


def test_without_stacks_there_is_no_source() -> None:
    trace = load_drawn(
        """
        host   [aten::mm            ]
        host    [cudaLaunchKernel>1]
        gpu 7              [gemm<1 ]
        """
    )

    for table in (trace.ops, trace.runtime, trace.kernels):
        assert table.select("module", *PLACE).rows() == [(None, *NOWHERE)]


def test_frames_of_libraries_alone_give_no_source() -> None:
    trace = load_drawn(
        """
        host   [torch/nn/modules/module.py(1): _call_impl]
        host     [aten::mm  ]
        """
    )

    assert trace.ops.select(PLACE).rows() == [NOWHERE]


def test_a_frame_of_another_thread_gives_no_source() -> None:
    trace = load_drawn(
        """
        host     [train.py(3): main ]
        host 2     [aten::mm  ]
        """
    )

    assert trace.ops.select(PLACE).rows() == [NOWHERE]


def numbered(sequence: int, forward_thread: int) -> dict[str, int]:
    return {"Sequence number": sequence, "Fwd thread id": forward_thread}


BACKWARD = """
host     [train.py(3): main                         ]
host      [nn.Module: Linear_0                     ]
host       [aten::linear    ]   [aten::relu       ]
host         [aten::addmm ]
host 2                                              [AddmmBackward0] [MulBackward0]
host 2                                               [aten::mm     ]
"""
NUMBERS = {
    "aten::linear": numbered(7, 0),
    "aten::addmm": numbered(7, 0),
    "aten::relu": numbered(8, 0),
    "AddmmBackward0": numbered(7, 1),
    "MulBackward0": numbered(99, 1),
}


def test_a_backward_op_has_the_forward_op_that_made_its_node() -> None:
    ops = load_drawn(BACKWARD, NUMBERS).ops
    row = dict(zip(ops["name"].cast(pl.String), ops["id"], strict=True))
    forward = dict(zip(ops["name"].cast(pl.String), ops["forward"], strict=True))

    # Of the two with its number, the one that began last.
    assert forward["AddmmBackward0"] == row["aten::addmm"]
    assert forward["aten::mm"] == row["aten::addmm"]
    assert forward["MulBackward0"] is None
    assert forward["aten::addmm"] is None


def test_a_backward_op_comes_from_where_its_forward_does() -> None:
    ops = load_drawn(BACKWARD, NUMBERS).ops.with_columns(pl.col("name").cast(pl.String))

    inside = ops.filter(pl.col("name") == "aten::mm")
    assert inside.select("module", *PLACE).rows() == [
        ("Linear_0", "train.py", 3, "main")
    ]
    lost = ops.filter(pl.col("name") == "MulBackward0")
    assert lost.select("module", *PLACE).rows() == [(None, *NOWHERE)]


def test_the_forward_of_an_earlier_step_with_the_same_number_is_not_taken() -> None:
    ops = load_drawn(
        """
        host     [a.py(1): f  ] [b.py(2): g  ]
        host      [aten::mm  ]   [aten::mm  ]
        host 2                                 [MmBackward0]
        """,
        {"aten::mm": numbered(7, 0), "MmBackward0": numbered(7, 1)},
    ).ops

    assert ops["forward"].to_list() == [None, None, 1]
    assert ops["file"].to_list()[2] == "b.py"


def test_a_forward_op_after_the_backward_is_not_its_forward() -> None:
    ops = load_drawn(
        """
        host     [aten::mm  ]                  [aten::mm ]
        host 2                 [MmBackward0]
        """,
        {"aten::mm": numbered(7, 0), "MmBackward0": numbered(7, 1)},
    ).ops

    assert ops["forward"].to_list() == [None, None, 0]


def test_numbers_are_of_the_thread_that_ran_the_forward() -> None:
    """Two forward threads count each for itself, from the same number on."""
    ops = load_drawn(
        """
        host     [aten::mm  ] [aten::mul]
        host 2       [aten::abs  ]
        host 3                            [MmBackward0][MulBackward0]
        """,
        {
            "aten::mm": numbered(7, 0),
            "aten::mul": numbered(8, 0),
            "aten::abs": numbered(7, 0),
            "MmBackward0": numbered(7, 1),
            "MulBackward0": numbered(8, 1),
        },
    ).ops
    names = ops["name"].cast(pl.String)
    forward = dict(zip(names, ops["forward"], strict=True))

    assert names[forward["MmBackward0"]] == "aten::mm"
    assert names[forward["MulBackward0"]] == "aten::mul"


def test_old_traces_have_their_stacks_as_text() -> None:
    stack = (
        "torch/nn/functional.py(5): linear;"
        " model.py(30): attend; model.py(10): forward; train.py(3): main"
    )
    trace = load_drawn("host   [aten::mm  ]", {"aten::mm": {"Call stack": stack}})

    assert trace.ops.select(PLACE).rows() == [("model.py", 30, "attend")]


def test_a_function_in_which_one_step_ends_and_the_next_begins_has_its_ops() -> None:
    trace = load_drawn(
        """
        host   [train.py(1): main                                                   ]
        host    [ProfilerStep#1                     ][ProfilerStep#2               ]
        host      [train.py(9): step                                   ]
        host         [aten::mm         ]              [aten::mul_     ]
        """
    )

    assert trace.ops["function"].to_list() == ["step", "step"]


STARTED = """
host  [t.py(248): main                                                               ]
host   [t.py(60): step                     ] [t.py(52): step ] [t.py(70): other]
host    [torch/profiler/profiler.py(9): it]
host                                          [aten::mm]                        [add]
"""


def lines(drawing: str) -> dict[str, set[int | None]]:
    frames = load_drawn(drawing).frames.filter("own")
    result: dict[str, set[int | None]] = {}
    for function, line in frames.select(
        pl.col("function").cast(pl.String), "line"
    ).iter_rows():
        result.setdefault(function, set()).add(line)
    return result


def test_a_function_that_runs_at_the_start_begins_where_another_call_does() -> None:
    assert lines(STARTED)["step"] == {52}


def test_a_function_that_is_called_once_before_the_profiler_starts_has_no_line() -> (
    None
):
    assert lines(STARTED)["main"] == {None}
    ops = load_drawn(STARTED).ops
    assert ops.select(PLACE).rows()[-1] == ("t.py", None, "main")


def test_a_library_that_runs_at_the_start_is_named_by_the_line_where_it_begins() -> (
    None
):
    drawing = """
host  [t.py(248): main                                                               ]
host   [einops/a.py(77): go                        ] [einops/a.py(7): go]
host    [torch/profiler/profiler.py(9): it] [add]     [aten::mm]
"""

    assert set(load_drawn(drawing).ops["via"].cast(pl.String)) == {"go (einops/a.py:7)"}


def test_lines_of_functions_that_share_a_name_are_told_apart_or_not_at_all() -> None:
    shared = STARTED.replace("t.py(70): other", "t.py(70): step ")

    assert lines(shared)["step"] == {None, 52, 70}


def test_without_the_profilers_start_all_lines_are_those_of_functions() -> None:
    assert lines(STARTED.replace("torch/profiler", "torch/else"))["main"] == {248}


CALLS = """
host   [model.py(30): attend                                                        ]
host    [torch/functional.py(5): sdpa by model.py(33): attend]
host     [<built-in function softmax> by torch/functional.py(7): sdpa]
host      [aten::softmax   ] [aten::add ]                              [aten::mul  ]
"""


def call_lines(
    drawing: str, args: dict[str, dict[str, int]] | None = None
) -> dict[str, int]:
    ops = load_drawn(drawing, args).ops
    return dict(ops.select(pl.col("name").cast(pl.String), "call_line").iter_rows())


def test_the_line_of_an_op_is_the_one_at_which_the_users_function_calls() -> None:
    result = call_lines(CALLS)

    assert result["aten::softmax"] == result["aten::add"] == 33


def test_an_operator_that_the_function_runs_itself_has_no_line_of_a_call() -> None:
    assert call_lines(CALLS)["aten::mul"] is None


def test_a_function_of_the_user_inside_of_a_call_has_lines_of_its_own() -> None:
    result = call_lines(
        """
        host   [train.py(1): main                                              ]
        host    [nn.Module: Net_0 by train.py(9): main                        ]
        host     [model.py(30): forward by torch/module.py(4): call          ]
        host      [aten::mul  ] [<built-in method t> by model.py(33): forward]
        host                      [aten::t ]
        """
    )

    assert result == {"aten::mul": None, "aten::t": 33}


def test_a_backward_op_has_the_line_of_its_forward() -> None:
    result = call_lines(
        """
        host   [train.py(3): main                                       ]
        host    [<built-in function mm> by train.py(7): main]
        host     [aten::mm  ]
        host 2                                                            [MmBackward0]
        """,
        {"aten::mm": numbered(7, 0), "MmBackward0": numbered(7, 1)},
    )

    assert result == {"aten::mm": 7, "MmBackward0": 7}


def test_calls_and_kernels_have_the_line_of_their_op() -> None:
    trace = load_drawn(
        """
        host   [train.py(3): main                             ]
        host    [<built-in function mm> by train.py(7): main]
        host     [aten::mm            ]
        host      [cudaLaunchKernel>1]
        gpu 7              [gemm<1 ]
        """
    )

    assert trace.runtime["call_line"].to_list() == [7]
    assert trace.kernels["call_line"].to_list() == [7]


def test_a_caller_that_is_no_place_gives_no_line() -> None:
    drawing = CALLS.replace("model.py(33): attend]", "model.py(x): attend ]")

    assert call_lines(drawing)["aten::softmax"] is None


def test_an_op_may_have_its_line_written_as_fixtures_do() -> None:
    drawing = CALLS.replace(
        "[aten::mul  ]", "[aten::mul by model.py(35): attend ]"
    ).replace("model.py(30): attend  ", "model.py(30): attend" + " " * 25)

    assert call_lines(drawing)["aten::mul"] == 35


def test_a_line_of_another_function_is_not_taken() -> None:
    drawing = CALLS.replace(
        "[aten::mul  ]", "[aten::mul by model.py(35): other  ]"
    ).replace("model.py(30): attend  ", "model.py(30): attend" + " " * 25)

    assert call_lines(drawing)["aten::mul"] is None
