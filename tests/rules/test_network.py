"""NET: exposed collectives, and waits for stragglers, on real traces."""

from __future__ import annotations

from linting import (
    case_findings,
    drawn_findings,
    mentions,
    priced_findings,
)

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.idle_causes import idle_causes
from traceq.testing import load_drawn


def test_the_rank_that_waits_has_a_finding_and_the_straggler_does_not() -> None:
    (waits,) = case_findings("public/v100_tp2_rank1.json.gz", "NET002")

    assert mentions(waits, "allreduce", "2 ranks", 13)
    assert 40e6 < waits.gpu_ns < 48e6
    assert not case_findings("public/v100_tp2_rank0.json.gz", "NET002")


def test_gradients_sent_after_the_backward_pass_are_exposed() -> None:
    (finding,) = case_findings("public/mi300_resnet_checkpoint.json.gz", "NET001")

    assert mentions(finding, "allreduce", "8 ranks", "twice")
    assert 11e6 < finding.gpu_ns < 12e6


def test_what_kernels_cover_is_not_exposed() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2][cudaLaunchKernel>3       ]
        gpu 7           [gemm<1           ]           [Memcpy DtoD<3]
        gpu 20          [ncclDevKernel_AllReduce_Sum_f32<2             ]
        """,
        "NET001",
    )

    # A copy is not compute to overlap with.
    assert finding.gpu_ns == (48 - 19) * 1000


def test_two_collectives_at_once_count_once() -> None:
    findings = priced_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 20          [ncclDevKernel_AllReduce_Sum_f32<1             ]
        gpu 24              [ncclDevKernel_AllGather_RING_LL<2              ]
        """,
        "NET001",
    )

    assert {finding.subject for finding in findings} == {"allreduce", "allgather"}
    assert sum(finding.gpu_ns for finding in findings) == 53_000


def test_without_sizes_nothing_is_called_a_wait() -> None:
    findings = case_findings("public/compact_sampled_rank0.json.gz", "NET")

    # Shapes of lists of tensors are not in this one, so that of all-reduces is unknown.
    unsized = [finding for finding in findings if finding.subject == "allreduce"]
    assert {finding.code for finding in unsized} == {"NET001"}
    assert all("were not recorded" in finding.evidence[-1].name for finding in unsized)


GLOO = """
host   [ProfilerStep#1                                                                                         ]
host    [train.py(3): step                                                                        ]
host     [aten::mm    ] [c10d::allreduce_     ]                                              [aten::add   ]
host      [cudaLaunch>1] [cudaMemcpyAsync>2  ]                                                [cudaLaunch>4]
host 2                                    [@gloo:all_reduce                              ]
host 2                                     [cudaStreamSynchronize]   [cudaMemcpyAsync>3]
gpu 7           [gemm<1     ]       [Memcpy DtoH (Device -> Pinned)<2] [Memcpy HtoD (Pinned -> Device)<3][a<4]
"""  # noqa: E501 - a collective is long


def test_a_collective_of_gloo_is_communication_through_the_host() -> None:
    findings = priced_findings(GLOO)

    (exposed,) = (finding for finding in findings if finding.code == "NET001")
    assert mentions(exposed, "all_reduce", "gloo", "once")
    assert (exposed.place.file, exposed.place.function) == ("train.py", "step")
    assert exposed.saves_ns > 0
    assert "nccl" in exposed.advice


def test_the_waits_of_a_collective_of_gloo_are_not_the_programs() -> None:
    assert not drawn_findings(GLOO, "SYN")


def test_copies_that_serve_gloo_are_its_cost_and_not_needed() -> None:
    (finding,) = drawn_findings(GLOO, "CPY001")

    (part,) = (line for line in finding.evidence if line.label == "part")
    assert part.name == "copies for collectives through the host"
    assert finding.data["needed"] == 0
    assert not drawn_findings(GLOO.replace("Pinned", "Pageable"), "CPY003")


def test_the_gpu_idles_while_gloo_communicates() -> None:
    trace = load_drawn(GLOO)
    causes = idle_causes(trace, steady_steps(trace))

    assert "communicating through the host" in causes["cause"].to_list()


def test_copies_whose_launch_was_not_recorded_serve_no_collective() -> None:
    unlaunched = GLOO.replace("HtoD (Pinned -> Device)<3", "HtoD (Pinned -> Device)  ")

    findings = drawn_findings(unlaunched, "NET001", "CPY001")

    assert {finding.code for finding in findings} == {"NET001", "CPY001"}
