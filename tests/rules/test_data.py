"""DAT: input that the GPU waits for, on real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from linting import case_findings, drawn_findings, outcome

from traceq.finding import Severity
from traceq.model.run import Rank, Run
from traceq.recording import Recording
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

WAITING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def test_a_loader_without_workers_is_found_at_the_line_of_its_loop() -> None:
    (found,) = case_findings("public/v100_resnet50_workers0.json.gz", "DAT001")

    assert "num_workers=0" in found.message
    assert (found.place.file, found.place.line) == ("resnet50_profiler_api.py", 42)
    # The GPU idles 33% of 178 ms there; the repaired run is 36 ms faster.
    assert 40e6 < found.gpu_ns < 65e6


def test_the_same_program_with_workers_has_no_finding() -> None:
    assert not case_findings("public/v100_resnet50_workers4.json.gz", "DAT001")


def test_workers_that_do_not_keep_up_are_found() -> None:
    (found,) = case_findings("public/t4_amp.json.gz", "DAT001")

    assert "waits for the DataLoader's workers" in found.message
    assert found.subject == "_MultiProcessingDataLoaderIter"


def test_loading_counts_only_while_the_gpu_idles() -> None:
    space = " " * (len(WAITING) - 20)
    (found,) = drawn_findings(
        f"""
        host  [ProfilerStep#1 {space}                                     ]
        host  [cudaLaunchKernel>1][{WAITING}]
        gpu 7 [gemm<1                              ]
        """,
        "DAT001",
    )

    loading = len(WAITING) + 2
    assert found.data["loading_ns"] == loading * 1000
    assert found.gpu_ns == (loading - 18) * 1000


def test_the_function_that_loads_is_named() -> None:
    space = " " * (len(WAITING) - 20)
    (found,) = drawn_findings(
        f"""
        host  [ProfilerStep#1 {space}                                   ]
        host   [train.py(7): main {space}                              ]
        host    [{WAITING}][cudaLaunchKernel>1]
        host     [data.py(30): __getitem__]
        gpu 7   {" " * len(WAITING)}                 [gemm<1 ]
        """,
        "DAT001",
    )

    assert (found.place.file, found.place.function) == ("train.py", "main")
    (inside,) = (line for line in found.evidence if line.label == "inside")
    assert (inside.name, inside.value, inside.count) == (
        "__getitem__ (data.py:30)",
        26_000,
        1,
    )


LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _loads(us: int, then_us: int) -> str:
    """Draw two steps that load for so long and then compute for so long."""
    gap, work = " " * (us - len(LOADING) - 2), " " * (then_us - 30)
    step = f"[{LOADING}{gap}][cudaLaunchKernel>1]{work}[sync    ]"
    rest = " " * (len(step) - 16)
    kernel = " " * us + "     [gemm<1]"
    return f"""
    host  [ProfilerStep#1{rest}][ProfilerStep#2{rest}]
    host  {step}{step.replace(">1", ">2")}
    gpu 7 {kernel}{" " * (len(step) - len(kernel))}{kernel.replace("<1", "<2")}
    """


def test_loading_that_workers_do_not_make_faster_is_minor() -> None:
    (short,) = drawn_findings(_loads(1_000, 500), "DAT001")
    (long,) = drawn_findings(_loads(6_000, 3_000), "DAT001")

    assert short.severity is Severity.info
    assert long.severity is Severity.warning


def _loading(us: int, then_us: int, cores: int | None = None) -> Finding:
    trace = load_drawn(_loads(us, then_us))
    rank = Rank("rank-0", 0, "done", None, None, None, (), cores)
    run = Run(Path(), (), {}, (rank,), (), "finished")
    recording = Recording(
        "drawn", replace(trace, run=run, rank=rank), step_ns=1000 * (us + then_us)
    )
    (found,) = outcome(recording, "DAT001").findings
    return found


def test_workers_needed_are_the_loading_over_the_step_after_it() -> None:
    """A worker takes 1.3 times as long for a batch as the training process does."""
    found = _loading(240, 100, cores=16)

    assert found.data["workers_needed"] == 4
    assert "num_workers=4, pin_memory" in found.advice


def test_fewer_workers_than_needed_leave_loading_over_their_number() -> None:
    """1.3 times 264 µs over 4 workers are 86 a step, though the step after takes 30."""
    found = _loading(264, 30, cores=4)

    assert found.data["workers"] == 4
    after = (264 + 30) * 1000 - found.saves_ns
    assert after == pytest.approx(1.3 * 264_000 / 4, rel=0.1)
    assert "num_workers=4, one for each core" in found.advice
    assert f"it takes {found.data['workers_needed']} workers" in found.advice


def test_ranks_share_the_cores_of_their_machine() -> None:
    trace = load_drawn(_loads(264, 30))
    ranks = [Rank(f"rank-{n}", n, "done", None, None, None, (), 8) for n in range(4)]
    run = Run(Path(), (), {}, tuple(ranks), (), "finished")
    recording = Recording("drawn", replace(trace, run=run, rank=ranks[0]))

    (found,) = outcome(recording, "DAT001").findings

    assert found.data["workers"] == 2


def test_without_known_cores_the_advice_is_to_check_them() -> None:
    found = _loading(264, 30)

    assert found.data["workers"] == 8
    assert "check that the machine has 8 cores" in found.advice


def test_handing_many_tensors_over_from_a_worker_stays() -> None:
    copies = "".join(f"[cudaMemcpyAsync>{n}]" for n in range(10, 40))
    gpu = "".join(f"[Memcpy HtoD (Pa<{n}]" for n in range(10, 40))
    space = " " * (len(copies) + 3000)
    (found,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * len(LOADING)}{space}]
        host   [{LOADING}{" " * 3000}]{copies}
        gpu 7   {" " * (len(LOADING) + 3020)}{gpu}
        """,
        "DAT001",
    )

    (handed,) = (line for line in found.evidence if line.label == "tensors")
    assert handed.value == 30
    # 30 tensors at 250 µs are more than the 3 ms that loading takes.
    assert found.saves_ns == 0


@pytest.mark.parametrize(("tensors", "said"), [(2, False), (30, True)])
def test_only_many_tensors_are_to_be_collated(tensors: int, *, said: bool) -> None:
    numbers = range(10, 10 + tensors)
    copies = "".join(f"[cudaMemcpyAsync>{n}]" for n in numbers)
    gpu = "".join(f"[Memcpy HtoD (Pa<{n}]" for n in numbers)
    # Handing each over takes 250 µs: more than a quarter of this for two.
    loads = LOADING.ljust(800)
    (found,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * (len(loads) + len(copies) + 2000)}]
        host   [{loads}]{copies}
        gpu 7   {" " * (len(loads) + 20)}{gpu}
        """,
        "DAT001",
    )

    assert ("collate them into a few" in found.advice) == said


def test_the_workers_of_a_real_program_are_as_many_as_its_loading_needs() -> None:
    (found,) = case_findings("public/v100_resnet50_workers0.json.gz", "DAT001")

    # 69 ms of loading as recorded, before a step of 103 to 110 ms.
    assert found.data["workers_needed"] == 1
    assert "num_workers=2" in found.advice


def test_workers_that_are_too_few_are_needed_in_proportion() -> None:
    (found,) = case_findings("public/t4_amp.json.gz", "DAT001")

    assert "to about 6 times as many" in found.advice


def _taken(inside: str, then_us: int = 400) -> Finding:
    """Return what is said of a batch that workers load, with calls inside of taking it.

    After it the GPU works for ``then_us``.
    """
    region = f"[{WAITING}]"
    (found,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * (len(region) + then_us)}]
        host   {region}[cudaLaunchKernel>1]
        host    {inside}
        gpu 7  {" " * (len(region) + 10)}[gemm<1{" " * then_us}]
        """,
        "DAT001",
    )
    return found


_GET = "[torch/utils/data/dataloader.py(9): _get_data              ]"


@pytest.mark.parametrize(
    ("polls", "ready"),
    [("  [<built-in method poll of select.poll object>]", False), ("", True)],
)
def test_taking_a_batch_that_is_ready_is_told_from_waiting_for_it(
    polls: str, *, ready: bool
) -> None:
    found = _taken(f"{_GET}\n        host    {polls}")

    assert ("that is ready" in found.message) is ready
    # What is ahead in one step says nothing of many.
    assert ("keeps batches ahead" in found.advice) is ready
    assert "do not help" not in found.advice
    (waits,) = (line.value for line in found.evidence if line.label == "waits")
    assert (waits == 0) is ready


def test_without_stacks_a_short_wait_may_be_the_taking_of_a_batch() -> None:
    found = _taken("")

    assert "stacks tell which it is" in found.advice
    assert "times as many" not in found.advice


def test_without_stacks_a_long_wait_is_for_the_workers() -> None:
    assert "the workers do not keep up" in _taken("", then_us=20).advice
