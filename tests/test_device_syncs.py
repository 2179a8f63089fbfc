"""Waits of the host for the GPU, and the Python calls that make them."""

from __future__ import annotations

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.device_syncs import syncs_in_ops, written_as
from traceq.testing import load_drawn

READ = """
    host   [ProfilerStep#1                                            ]
    python  [<built-in method item of Tensor object at 0x7f>         ]
    host     [aten::item                                            ]
    host      [aten::_local_scalar_dense                           ]
    host       [cudaMemcpyAsync>1][cudaStreamSynchronize       ]
    gpu 7                         [Memcpy DtoH (Device -> Pinned)<1]
"""


def test_no_method_is_named_where_every_wait_was_left_out() -> None:
    trace = load_drawn(READ)
    syncs = syncs_in_ops(trace, steady_steps(trace))

    assert written_as(trace, syncs).to_list() == ["item"]
    assert written_as(trace, syncs.clear()).to_list() == []
