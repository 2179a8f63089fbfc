"""Shared code of the rules on jobs: names of ranks, savings, evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.linter import Evidence, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.linter import Finding
    from traceq.ranks.analysis import Analysis, Straggler

# Ranks in two steps each: compute, an all-reduce, and what needs its result. EARLY
# waits in its collective where another rank is late: its host does something else
# first, its kernel is slower, or it has another, longer one.
EARLY = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1  ]                                 [adam<3 ]          [gemm<4  ]                                 [adam<6 ]
    gpu 20                    [ncclAllReduce<2              ]                               [ncclAllReduce<5              ]
"""  # noqa: E501 - two steps
LATE = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host                [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7                      [gemm<1  ]                     [adam<3 ]                      [gemm<4  ]                     [adam<6 ]
    gpu 20                                [ncclAllReduce<2  ]                                           [ncclAllReduce<5  ]
"""  # noqa: E501 - two steps
SLOW = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1              ]                     [adam<3 ]          [gemm<4              ]                     [adam<6 ]
    gpu 20                                [ncclAllReduce<2  ]                                           [ncclAllReduce<5  ]
"""  # noqa: E501 - two steps
MORE = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm_of_more_rows<1 ]                     [adam<3 ]          [gemm_of_more_rows<4 ]                     [adam<6 ]
    gpu 20                                [ncclAllReduce<2  ]                                           [ncclAllReduce<5  ]
"""  # noqa: E501 - two steps

HIDDEN = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1  ][gemm_of_the_next<3            ]                    [gemm<4  ][gemm_of_the_next<6            ]
    gpu 20                    [ncclAllReduce<2             ]                                [ncclAllReduce<5             ]
"""  # noqa: E501 - two steps
_FAST = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1  ]                       [adam<3 ]                    [gemm<4  ]                       [adam<6 ]
    gpu 20                    [ncclAllReduce_a<2  ]                                         [ncclAllReduce_a<5  ]
"""  # noqa: E501 - two steps
SLOW_GROUP = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1  ]                                 [adam<3 ]          [gemm<4  ]                                 [adam<6 ]
    gpu 20                    [ncclAllReduce_c<2            ]                               [ncclAllReduce_c<5            ]
"""  # noqa: E501 - two steps
STAGE_0 = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [forward<1     ]                                              [forward<4     ]
    gpu 20                          [ncclSend<2] [ncclRecvGrad<3     ]                            [ncclSend<5] [ncclRecvGrad<6     ]
"""  # noqa: E501 - two steps
STAGE_1 = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7                                        [last<2  ]                                                    [last<5  ]
    gpu 20         [ncclRecv<1                 ]            [ncclSendG<3]        [ncclRecv<4                 ]            [ncclSendG<6]
"""  # noqa: E501 - two steps
_PP = {"Process Group Name": "pp"}
STAGES = {
    "ncclSend": {"Collective name": "send", "Dst Rank": 1} | _PP,
    "ncclRecv": {"Collective name": "recv", "Src Rank": 0} | _PP,
    "ncclSendG": {"Collective name": "send", "Dst Rank": 0} | _PP,
    "ncclRecvGrad": {"Collective name": "recv", "Src Rank": 1} | _PP,
}
_A = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1  ]                                 [adam<3 ]          [gemm<4  ]                                 [adam<6 ]
    gpu 20                    [ncclAllToAll_0<2             ]                               [ncclAllToAll_0<5             ]
"""  # noqa: E501 - two steps
_B = """
    host   [ProfilerStep#1                                             ] [ProfilerStep#2                                             ]
    host    [cuLaunch>1] [cuLaunch>2] [cuLaunch>3]                        [cuLaunch>4] [cuLaunch>5] [cuLaunch>6]
    gpu 7          [gemm<1  ]                                 [adam<3 ]          [gemm<4  ]                                 [adam<6 ]
    gpu 20                    [ncclAllToAll_1<2             ]                               [ncclAllToAll_1<5             ]
"""  # noqa: E501 - two steps


def _of_group(name: str) -> dict[str, object]:
    return {
        "Collective name": "allreduce",
        "Process Group Name": name,
        "Group size": 2,
        "In msg nelems": 1000,
        "dtype": "Float",
    }


GROUPS = {f"ncclAllReduce_{name}": _of_group(name) for name in "abc"}
_ALSO_FAST = _FAST.replace("_a<", "_b<")
FAST_GROUP = (_FAST, _FAST, _ALSO_FAST, _ALSO_FAST)


def _received(rows: str) -> dict[str, object]:
    return {
        "Collective name": "all_to_allv",
        "Process Group Name": "experts",
        "Out split size": rows,
    }


EXPERTS = (_A, _B)
TOKENS = {
    "ncclAllToAll_0": _received("[10, 10]"),
    "ncclAllToAll_1": _received("[40, 40]"),
}
TOKENS_EVEN = {
    "ncclAllToAll_0": _received("[24, 24]"),
    "ncclAllToAll_1": _received("[26, 26]"),
}

_PARTS = {
    "compute": "compute",
    "stalled": "stalled",
    "data": "data",
    "allocation": "memory",
    "sync": "syncs",
    "host": "host",
}


def ranks(job: Analysis, rows: Sequence[int]) -> str:
    """Return ranks by their numbers: rank 3, or ranks 3 and 5."""
    numbers = sorted(job.job.ranks["number"].gather(list(rows)).to_list())
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {listed(list(map(str, numbers)))}"


def hold(rows: Sequence[int]) -> str:
    """Return the verb for that many ranks."""
    return "holds" if len(rows) == 1 else "hold"


def saving(finding: Finding, job: Analysis, saved_ns: float) -> Finding:
    """Return a finding with what it saves of a step, by the job's replay."""
    saved = round(saved_ns / job.steps)
    return replace(finding, saves_ns=saved, saves_low_ns=saved, saves_high_ns=saved)


def late_lines(job: Analysis, straggler: Straggler) -> Iterator[Evidence]:
    """Yield by how much ranks are late, what that is made of, and who waits."""
    cause = straggler.cause
    note = "a step, more than its peers" if job.job.step_ns else "more than its peers"
    yield Evidence("late", value=cause.late_ns / job.steps, unit="ns", note=note)
    if cause.parts:
        largest = max(cause.parts, key=lambda part: cause.parts[part])
        yield Evidence(
            _PARTS.get(largest, largest),
            value=min(cause.parts[largest], cause.late_ns) / job.steps,
            unit="ns",
            note="of it",
        )
    last = job.by_rank.filter(job.by_rank["rank"].is_in(list(straggler.ranks)))[
        "last"
    ].sum()
    every = job.job.collectives.height
    yield Evidence("last", f"in {last} of {every} collectives")
    if cause.region:
        yield Evidence("region", cause.region)
