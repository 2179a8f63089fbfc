"""The line of a finding: the call in the user's function that costs most."""

from __future__ import annotations

from linting import drawn_findings

LOSSES = """
host  [ProfilerStep#1                                                               ]
host   [train.py(3): main                                                          ]
host    [<built-in method item> by train.py(7): main                              ]
host     [aten::item                                                             ]
host      [aten::_local_scalar_dense                                            ]
host       [cudaMemcpyAsync>2] [cudaStreamSynchronize                          ]
gpu 7  [gemm                               ][Memcpy DtoH (Device -> Pageable)<2]
"""


def test_a_finding_is_at_the_line_of_the_call() -> None:
    (found,) = drawn_findings(LOSSES, "SYN001")

    place = found.place
    assert (place.file, place.line, place.function) == ("train.py", 7, "main")
    assert (place.line_is, place.begins, place.other_lines) == ("call", 3, 0)


def test_without_the_callers_a_finding_is_in_the_function() -> None:
    blank = " " * len(" by train.py(7): main")
    (found,) = drawn_findings(LOSSES.replace(" by train.py(7): main", blank), "SYN001")

    place = found.place
    assert (place.file, place.line, place.line_is) == ("train.py", 3, "function")
    assert not place.exact


def test_the_fingerprint_does_not_depend_on_whether_the_line_is_known() -> None:
    blank = " " * len(" by train.py(7): main")
    (known,) = drawn_findings(LOSSES, "SYN001")
    (other,) = drawn_findings(LOSSES.replace(" by train.py(7): main", blank), "SYN001")

    assert known.fingerprint == other.fingerprint
