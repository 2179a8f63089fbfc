"""HST005: advice on work on the CPU, by where its tensors are from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import drawn_findings, placed

from traceq.linter import inputs

if TYPE_CHECKING:
    from typing import Any

    from traceq.linter import Finding

SIZES = inputs([[3, 600, 400]], ["float"])
BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Span = tuple[int, int, str]


def steps_of(
    *calls: Span, gpu: tuple[Span, ...] = (), args: dict[str, Any] | None = None
) -> tuple[Finding, ...]:
    """Return what HST005 finds in two steps of such calls, with a launch at the end."""
    lanes: dict[str, list[Span]] = {
        "host ": [(0, 480, "ProfilerStep#{}")],
        "host  ": [call for call in calls if not call[2].startswith("cuda")],
        "host   ": [call for call in calls if call[2].startswith("cuda")],
        "gpu 7": [*gpu, (470, 8, "gemm<{}1")],
    }
    lanes["host   "].append((440, 22, "cudaLaunchKernel>{}1"))
    names = {call[2]: SIZES for call in calls if call[2].startswith("aten::")}
    return drawn_findings(placed(lanes, 490, 2), "HST005", args=names | (args or {}))


COPIED: tuple[Span, ...] = (
    (2, 60, "aten::copy_"),
    (4, 50, "cudaMemcpyAsync>{}2"),
    (70, 170, "aten::sort"),
)
COPY = "Memcpy DtoH (Device -> Pageable)"


@pytest.mark.parametrize(("size", "expected"), [(2_880_000, True), (4, False)])
def test_what_was_copied_from_the_gpu_is_computed_there(
    size: int, *, expected: bool
) -> None:
    gpu = ((10, 40, f"{COPY}<{{}}2"),)
    (finding,) = steps_of(*COPIED, gpu=gpu, args={COPY: {"bytes": size}})

    assert finding.advice.startswith("what it works on was copied") == expected


@pytest.mark.parametrize("loads", [True, False])
def test_work_on_a_batch_is_for_workers_or_for_the_gpu(*, loads: bool) -> None:
    calls = ((2, 80, BATCH), (90, 170, "aten::sort"))
    (finding,) = steps_of(*calls[0 if loads else 1 :])

    assert finding.advice.startswith("it works on the batch") == loads
    assert ("once before the loop" in finding.advice) == (not loads)


def test_work_on_a_batch_after_a_launch_may_be_on_anything() -> None:
    calls = ((2, 80, BATCH), (90, 22, "cudaLaunchKernel>{}3"), (120, 170, "aten::sort"))
    (finding,) = steps_of(*calls, gpu=((115, 8, "k<{}3"),))

    assert not finding.advice.startswith("it works on the batch")


def test_a_mask_of_lengths_is_made_on_the_gpu_and_not_once() -> None:
    (finding,) = steps_of((2, 120, "aten::arange"), (124, 120, "aten::lt"))

    assert "make the mask on the GPU" in finding.advice
    assert "once" not in finding.advice


def test_numbers_drawn_into_a_tensor_are_not_made_once() -> None:
    (finding,) = steps_of((2, 120, "aten::zeros"), (124, 120, "aten::bernoulli_"))

    assert finding.advice.startswith("draw the numbers on the GPU")
    assert "once before" not in finding.advice


def test_what_another_tensor_changes_is_not_made_once() -> None:
    two = inputs([[3, 600, 400], [3, 600, 400]], ["float", "float"])
    calls = ((2, 120, "aten::full"), (124, 120, "aten::add"))
    (alone,) = steps_of(*calls)
    (finding,) = steps_of(*calls, args={"aten::add": two})

    assert "once before the loop" in alone.advice
    assert "make the tensor on the GPU" in finding.advice
    assert "once" not in finding.advice
