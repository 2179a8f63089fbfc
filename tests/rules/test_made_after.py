"""CPY003: tensors that the DataLoader does not pin, though it pins its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import drawn_findings

from traceq.linter import inputs

if TYPE_CHECKING:
    from traceq.linter import Finding

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"
WIDTH = 40


def sent(*ops: str, pinned: bool = False, frame: str = "", dtype: str = "") -> Finding:
    """Return what CPY003 says of a batch that ops of a function make and send."""
    lanes = {"op": "", "in": "", "call": "", "gpu": ""}
    for number, name in enumerate(ops, 1):
        copies = name.endswith(">")
        lanes["op"] += f"[aten::{name.rstrip('>')}".ljust(WIDTH - 1) + "]"
        inside = "aten::copy_" if copies or name == "to" else ""
        for lane, part in (
            ("in", f" [{inside}".ljust(WIDTH - 2) + "] " if inside else ""),
            ("call", f"  [cudaMemcpyAsync>{number}".ljust(WIDTH - 3) + "]  "),
            ("gpu", f"   [{PAGEABLE}<{number}".ljust(WIDTH - 3) + "] "),
        ):
            lanes[lane] += (part if copies or lane == "in" else "").ljust(WIDTH)
    other = f"[{PINNED}]" if pinned else ""
    wide = " " * WIDTH * (len(ops) + 2)
    drawing = f"""
    host   [ProfilerStep#1{wide}]
    host    [train.py(9): step{wide}]
    host     {lanes["op"]} [{frame or "x.py(3): g":<30}]
    host     {lanes["in"]}
    host     {lanes["call"]}
    gpu 7    {lanes["gpu"]}{other}
    """
    size = {"bytes": 1 << 20}
    args = {PAGEABLE: size, PINNED: {"bytes": 8}}
    if dtype:
        args["aten::to"] = inputs([[512, 512]], [dtype])
        args["aten::copy_"] = inputs([[512, 512]] * 2, ["float", dtype])
    (finding,) = drawn_findings(drawing, "CPY003", args=args)
    return finding


@pytest.mark.parametrize(
    ("ops", "maker"),
    [
        (("cat", "to>"), "by `cat`"),
        (("stack", "unsqueeze", "to>"), "by `stack`"),
    ],
)
def test_what_is_made_before_it_is_sent_is_made_on_the_gpu(
    ops: tuple[str, ...], maker: str
) -> None:
    finding = sent(*ops)

    assert maker in finding.advice
    assert finding.advice.startswith("it is made on the CPU")
    assert not finding.example


@pytest.mark.parametrize(
    ("dtype", "sends_more"), [("unsigned char", True), ("double", False), ("", False)]
)
def test_a_cast_to_wider_elements_is_one_for_the_gpu(
    dtype: str, *, sends_more: bool
) -> None:
    advice = sent("to", "to>", dtype=dtype).advice

    assert ("made on the CPU by a cast" in advice) == sends_more


@pytest.mark.parametrize(
    ("pinned", "frame"),
    [(True, ""), (False, "torch/utils/data/_utils/pin_memory.py(9): pin")],
)
def test_a_batch_that_a_loader_which_pins_leaves_out_needs_a_method(
    frame: str, *, pinned: bool
) -> None:
    finding = sent("to>", "mm", pinned=pinned, frame=frame)

    assert finding.advice.startswith("the program pins some of what it sends")
    assert "pin_memory() method" in finding.advice


def test_a_batch_of_a_program_that_pins_nothing_is_to_be_pinned() -> None:
    assert sent("mm", "to>").advice.startswith("pin the tensor where it is created")
