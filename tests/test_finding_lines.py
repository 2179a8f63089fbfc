"""The line of a finding: the call in the user's function that costs most."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq as command
from linting import drawn_findings
from test_runs import rank, write

from traceq.graph.source.control_flow import read_program
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

LOSSES = """
host  [ProfilerStep#1                                                               ]
host   [train.py(3): main                                                          ]
host    [<built-in method item> by train.py(7): main                              ]
host     [aten::item                                                             ]
host      [aten::_local_scalar_dense                                            ]
host       [cudaMemcpyAsync>2] [cudaStreamSynchronize                          ]
gpu 7  [gemm                               ][Memcpy DtoH (Device -> Pageable)<2]
"""


@pytest.mark.real
def test_a_finding_is_at_the_line_of_the_call() -> None:
    (finding,) = drawn_findings(LOSSES, "SYN001")

    place = finding.place
    assert (place.file, place.line, place.function) == ("train.py", 7, "main")
    assert (place.line_is, place.begins, place.other_lines) == ("call", 3, 0)


@pytest.mark.real
def test_without_the_callers_a_finding_is_in_the_function() -> None:
    blank = " " * len(" by train.py(7): main")
    (finding,) = drawn_findings(
        LOSSES.replace(" by train.py(7): main", blank), "SYN001"
    )

    place = finding.place
    assert (place.file, place.line, place.line_is) == ("train.py", 3, "function")
    assert not place.exact


@pytest.mark.real
def test_the_fingerprint_does_not_depend_on_whether_the_line_is_known() -> None:
    blank = " " * len(" by train.py(7): main")
    (known,) = drawn_findings(LOSSES, "SYN001")
    (other,) = drawn_findings(LOSSES.replace(" by train.py(7): main", blank), "SYN001")

    assert known.fingerprint == other.fingerprint


# torch names a call that is open when the profiler starts by the line that it was at.
LOOP = """
host                                   [ProfilerStep#1                                                               ]
host  [train.py(9): <module>                                                                                        ]
host   [torch/profiler/profiler.py(9): s]
host                                     [<built-in method item> by train.py(12): <module>                         ]
host                                      [aten::item                                                             ]
host                                       [aten::_local_scalar_dense                                            ]
host                                        [cudaMemcpyAsync>2] [cudaStreamSynchronize                          ]
gpu 7                                   [gemm                               ][Memcpy DtoH (Device -> Pageable)<2]
"""  # noqa: E501 - a drawing
CALLER = " by train.py(12): <module>"
WITHOUT_CALLER = LOOP.replace(CALLER, " " * len(CALLER))


def module_place(drawing: str) -> Any:  # noqa: ANN401 - a finding's place
    return drawn_findings(drawing, "SYN001")[0].place


@pytest.mark.real
def test_a_loop_at_module_level_is_at_the_line_where_the_recording_started() -> None:
    place = module_place(WITHOUT_CALLER)

    assert (place.file, place.line, place.function) == ("train.py", 9, "<module>")


@pytest.mark.real
def test_a_call_at_module_level_is_at_its_line() -> None:
    place = module_place(LOOP)

    assert (place.line, place.line_is) == (12, "call")


BETWEEN = """
host  [ProfilerStep#1                                                                                                                                                                              ]
host  [train.py(1): <module>                                                                                                                                                                       ]
host   [<built-in method mm> by train.py({before}): <module>      ]                                  [<built-in method mm> by train.py(9): <module>][<built-in method mm> by train.py(30): <module>]
host    [aten::mm          ]                                        [aten::item                  ]    [aten::mm          ]                           [aten::mm          ]
host                                                                 [aten::_local_scalar_dense ]
host                                                                  [cudaStreamSynchronize   ]
gpu 7  [gemm                                                                           ]
"""  # noqa: E501 - a drawing


@pytest.mark.real
@pytest.mark.parametrize(("before", "lines"), [(7, (7, 9)), (12, (9, 30))])
def test_a_line_that_is_not_known_is_between_those_before_and_after(
    before: int, lines: tuple[int, int]
) -> None:
    # A loop may begin again in between: then it may be anywhere in it.
    place = module_place(BETWEEN.replace("{before}", str(before)))

    assert (place.line, place.ends) == lines


@pytest.mark.parametrize(
    ("lines", "loop"),
    [((3, 3), (2, 6)), ((5, 5), (4, 6)), ((3, 5), (2, 6)), ((1, 1), None)],
)
def test_the_loop_of_a_line_is_the_smallest_around_it(
    lines: tuple[int, int], loop: tuple[int, int] | None
) -> None:
    source = "a = 1\nfor x in y:\n    f(x)\n    while a:\n        g()\n        h()\n"
    module = read_program(source).find("<module>", None)

    assert module is not None
    assert module.loop(*lines) == loop


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a loop at module level, whose functions that were open are known."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "stderr.log").write_text("")
    drawn = WITHOUT_CALLER.replace("train.py(9)", "train.py(1)")
    content = json.dumps(draw(drawn)).encode()
    (folder / "rank-0.trace.json.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.mark.real
def test_no_finding_is_at_the_whole_module(run: Path) -> None:
    opened = {"file": "train.py", "function": "<module>", "line": 1}
    trace = {"file": "rank-0.trace.json.gz", "open_functions": [opened]}
    write(run, [rank(0, step_time=None, trace=trace)])

    shown = command("lint", run, "--select", "SYN001").out

    assert "<module>" in shown
    assert "train.py:1" not in shown


SOURCE = "import torch\n" * 7 + "for x in loader:\n    y = f(x)\n    g(y)\n"


@pytest.mark.real
def test_a_loop_at_module_level_is_quoted(run: Path) -> None:
    opened = {"file": "train.py", "function": "<module>", "line": 1, "at": 9}
    (run / "sources").mkdir()
    (run / "sources" / "train.py").write_text(SOURCE)
    source = {
        "name": "train.py",
        "file": "train.py",
        "sha256": hashlib.sha256(SOURCE.encode()).hexdigest(),
    }
    trace = {"file": "rank-0.trace.json.gz", "open_functions": [opened]}
    write(run, [rank(0, step_time=None, trace=trace, sources=[source])])

    shown = command("lint", run, "--select", "SYN001").out

    assert "train.py:8-10 <module>" in shown
    assert "> 8 | for x in loader:" in shown.replace(">  8", "> 8")
