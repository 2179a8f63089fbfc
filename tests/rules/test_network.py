"""NET: exposed collectives, and waits for stragglers, on real traces."""

from __future__ import annotations

from linting import case_findings, drawn_findings


def test_the_rank_that_waits_has_a_finding_and_the_straggler_does_not() -> None:
    (waits,) = case_findings("public/v100_tp2_rank1.json.gz", "NET002")

    assert waits.message == "allreduce of 2 ranks waits for a straggler 13 times a step"
    assert 40e6 < waits.gpu_ns < 48e6
    assert not case_findings("public/v100_tp2_rank0.json.gz", "NET002")


def test_gradients_sent_after_the_backward_pass_are_exposed() -> None:
    (found,) = case_findings("public/mi300_resnet_checkpoint.json.gz", "NET001")

    assert found.message.startswith("allreduce over 8 ranks twice a step")
    assert 11e6 < found.gpu_ns < 12e6


def test_what_kernels_cover_is_not_exposed() -> None:
    (found,) = drawn_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2][cudaLaunchKernel>3       ]
        gpu 7           [gemm<1           ]           [Memcpy DtoD<3]
        gpu 20          [ncclDevKernel_AllReduce_Sum_f32<2             ]
        """,
        "NET001",
    )

    # A copy is not compute to overlap with.
    assert found.gpu_ns == (48 - 19) * 1000


def test_two_collectives_at_once_count_once() -> None:
    found = drawn_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaLaunchKernel>1][cudaLaunchKernel>2]
        gpu 20          [ncclDevKernel_AllReduce_Sum_f32<1             ]
        gpu 24              [ncclDevKernel_AllGather_RING_LL<2              ]
        """,
        "NET001",
    )

    assert {one.subject for one in found} == {"allreduce", "allgather"}
    assert sum(one.gpu_ns for one in found) == 53_000


def test_without_sizes_nothing_is_called_a_wait() -> None:
    found = case_findings("public/compact_sampled_rank0.json.gz", "NET")

    assert {one.code for one in found} == {"NET001"}
    assert all("were not recorded" in one.evidence[-1].name for one in found)
    assert {one.subject for one in found} == {"alltoall", "allgather", "allreduce"}
