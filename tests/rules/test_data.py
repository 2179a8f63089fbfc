"""DAT: input that the GPU waits for, on real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from linting import (
    case_findings,
    drawn_findings,
    findings_of,
    outcome,
    priced_findings,
)

from traceq.model.finding import Severity
from traceq.model.recording import Recording
from traceq.model.run import Rank, Run
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

WAITING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def test_a_loader_without_workers_is_found_at_the_line_of_its_loop() -> None:
    (finding,) = case_findings("public/v100_resnet50_workers0.json.gz", "DAT001")

    assert "num_workers=0" in finding.message
    assert (finding.place.file, finding.place.line) == ("resnet50_profiler_api.py", 42)
    # The GPU idles 33% of 178 ms there; the repaired run is 36 ms faster.
    assert 40e6 < finding.gpu_ns < 65e6


def test_the_same_program_with_workers_has_no_finding() -> None:
    assert not case_findings("public/v100_resnet50_workers4.json.gz", "DAT001")


def test_workers_that_do_not_keep_up_are_found() -> None:
    (finding,) = case_findings("public/t4_amp.json.gz", "DAT001")

    assert "waits for the DataLoader's workers" in finding.message
    assert finding.subject == "_MultiProcessingDataLoaderIter"


def test_loading_counts_only_while_the_gpu_idles() -> None:
    space = " " * (len(WAITING) - 20)
    (finding,) = priced_findings(
        f"""
        host  [ProfilerStep#1 {space}                                     ]
        host  [cudaLaunchKernel>1][{WAITING}]
        gpu 7 [gemm<1                              ]
        """,
        "DAT001",
    )

    loading = len(WAITING) + 2
    assert finding.data["loading_ns"] == loading * 1000
    assert finding.gpu_ns == (loading - 18) * 1000


def test_the_function_that_loads_is_named() -> None:
    space = " " * (len(WAITING) - 20)
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1 {space}                                   ]
        host   [train.py(7): main {space}                              ]
        host    [{WAITING}][cudaLaunchKernel>1]
        host     [data.py(30): __getitem__]
        gpu 7   {" " * len(WAITING)}                 [gemm<1 ]
        """,
        "DAT001",
    )

    assert (finding.place.file, finding.place.function) == ("train.py", "main")
    (inside,) = (line for line in finding.evidence if line.label == "inside")
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
    (short,) = priced_findings(_loads(1_000, 500), "DAT001")
    (long,) = priced_findings(_loads(6_000, 3_000), "DAT001")

    assert short.severity is Severity.info
    assert not short.saves_ns
    assert short.advice.startswith("time the program with num_workers=2")
    assert long.severity is Severity.warning
    assert long.saves_ns > 0


PICKS = "torch/utils/data/dataset.py(205): __getitem__"
TENSOR = "[torch/utils/data/dataset.py(206): <genexpr>]"
STACKS = "torch/utils/data/_utils/collate.py(340): default_collate"


def _by_rows(rows: int, tensors: int = 1, other: str = "") -> Finding:
    """Return what is said of rows that are picked one by one, and stacked.

    The other is called after the last row, within what stacks them.
    """
    calls = TENSOR * (tensors + 1)
    picks, calls = f"[{PICKS.ljust(len(calls))}]" * rows, f" {calls} " * rows
    width = len(picks) + 400
    (finding,) = priced_findings(
        f"""
        host  [ProfilerStep#1{" " * (width + 300)}]
        host   [train.py(7): main{" " * (width + 250)}]
        host    [{LOADING.ljust(width)}][cudaLaunchKernel>1]
        host     {picks}[{STACKS.ljust(300)}]
        host     {calls} {other}
        gpu 7   {" " * (width + 20)}[gemm<1 ]
        """,
        "DAT001",
    )
    return finding


def test_rows_of_a_tensor_dataset_are_to_be_picked_by_batches() -> None:
    finding = _by_rows(30)

    assert "picks 30 rows a step out of a TensorDataset one by one" in finding.message
    assert finding.severity is Severity.warning
    assert "a BatchSampler as sampler and batch_size=None" in finding.advice
    assert "num_workers" not in finding.advice
    assert "BatchSampler(RandomSampler(data), 30, drop_last=False)" in finding.example
    # One tensor, and 30 rows of it.
    assert finding.data["whole_batches_ns"] == 30_000 + 30 * 500
    assert 0 < finding.saves_ns < finding.gpu_ns - 45_000


@pytest.mark.parametrize(
    "other",
    [
        "data.py(30): __getitem__",
        "/site-packages/torchvision/transforms/v2/_utils.py(9): collate",
        # A ConcatDataset takes one index alone.
        PICKS.replace("205", "350"),
    ],
)
def test_what_else_is_called_for_rows_may_not_take_batches(other: str) -> None:
    finding = _by_rows(30, other=f"[{other}]")

    assert "one by one" not in finding.message
    assert "BatchSampler" not in finding.advice
    assert not finding.example


def test_a_batch_that_is_picked_whole_is_no_row() -> None:
    assert "one by one" not in _by_rows(1, tensors=60).message


def _loading(us: int, then_us: int, cores: int | None = None) -> Finding:
    trace = load_drawn(_loads(us, then_us))
    rank = Rank("rank-0", 0, "done", None, None, None, (), cores)
    run = Run(Path(), (), {}, (rank,), (), "finished")
    recording = Recording(
        "drawn", replace(trace, run=run, rank=rank), step_ns=1000 * (us + then_us)
    )
    (finding,) = outcome(recording, "DAT001").findings
    return finding


def test_workers_needed_are_the_loading_over_the_step_after_it() -> None:
    """A worker takes 1.3 times as long for a batch as the training process does."""
    finding = _loading(4_800, 2_000, cores=16)

    assert finding.data["workers_needed"] == 4
    assert "num_workers=4, pin_memory" in finding.advice


def test_fewer_workers_than_needed_leave_loading_over_their_number() -> None:
    """1.3 times 5.28 ms over 4 are 1.7 a step, though the step after takes 0.6."""
    finding = _loading(5_280, 600, cores=4)

    assert finding.data["workers"] == 4
    after = (5_280 + 600) * 1000 - finding.saves_ns
    assert after == pytest.approx(1.3 * 5_280_000 / 4, rel=0.1)
    assert "num_workers=4, one for each core" in finding.advice
    assert f"it takes {finding.data['workers_needed']} workers" in finding.advice


@pytest.mark.parametrize("cores", [2, 4, 16])
def test_the_saving_is_that_of_the_workers_which_are_advised(cores: int) -> None:
    finding = _loading(5_280, 600, cores=cores)

    assert finding.data["workers_now"] == 0
    assert f"num_workers={finding.data['workers']}" in finding.advice
    saved = finding.data["saves_with_workers_ns"]
    assert saved == pytest.approx(finding.saves_ns, rel=0.02)


def test_ranks_share_the_cores_of_their_machine() -> None:
    # Of less than 3 ms nothing is said of workers.
    trace = load_drawn(_loads(5_280, 600))
    ranks = [Rank(f"rank-{n}", n, "done", None, None, None, (), 8) for n in range(4)]
    run = Run(Path(), (), {}, tuple(ranks), (), "finished")
    recording = Recording("drawn", replace(trace, run=run, rank=ranks[0]))

    (finding,) = findings_of(recording, "DAT001")

    assert finding.data["workers"] == 2


def test_without_known_cores_the_advice_is_to_check_them() -> None:
    finding = _loading(5_280, 600)

    assert finding.data["workers"] == 8
    assert "check that the machine has 8 cores" in finding.advice


def test_handing_over_a_batch_that_is_collated_into_few_tensors_stays() -> None:
    copies = "".join(f"[cudaMemcpyAsync>{n}]" for n in range(10, 40))
    gpu = "".join(f"[Memcpy HtoD (Pa<{n}]" for n in range(10, 40))
    space = " " * (len(copies) + 3000)
    (finding,) = priced_findings(
        f"""
        host  [ProfilerStep#1{" " * len(LOADING)}{space}]
        host   [{LOADING}{" " * 3000}]{copies}
        gpu 7   {" " * (len(LOADING) + 3020)}{gpu}
        """,
        "DAT001",
    )

    (handed,) = (line for line in finding.evidence if line.label == "tensors")
    assert handed.value == 30
    # 30 tensors at 250 µs are more than the 3 ms that loading takes, 4 are 1 ms of it.
    assert finding.saves_ns == pytest.approx(2_061_000)
    assert "30 tensors" in finding.advice


@pytest.mark.parametrize(("tensors", "message"), [(4, False), (30, True)])
def test_only_many_tensors_are_to_be_collated(tensors: int, *, message: bool) -> None:
    numbers = range(10, 10 + tensors)
    copies = "".join(f"[cudaMemcpyAsync>{n}]" for n in numbers)
    gpu = "".join(f"[Memcpy HtoD (Pa<{n}]" for n in numbers)
    # Handing each over takes 250 µs: more than a quarter of this for four.
    loads = LOADING.ljust(3_500)
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * (len(loads) + len(copies) + 2000)}]
        host   [{loads}]{copies}
        gpu 7   {" " * (len(loads) + 20)}{gpu}
        """,
        "DAT001",
    )

    assert ("collate them first" in finding.advice) == message


def test_the_workers_of_a_real_program_are_as_many_as_its_loading_needs() -> None:
    (finding,) = case_findings("public/v100_resnet50_workers0.json.gz", "DAT001")

    # 69 ms of loading as recorded, before a step of 103 to 110 ms.
    assert finding.data["workers_needed"] == 1
    assert "num_workers=2" in finding.advice


def test_workers_that_are_too_few_are_needed_in_proportion() -> None:
    (finding,) = case_findings("public/t4_amp.json.gz", "DAT001")

    assert "to about 6 times the present number" in finding.advice


def _taken(inside: str, then_us: int = 400) -> Finding:
    """Return what is said of a batch that workers load, with calls inside of taking it.

    After it the GPU works for ``then_us``.
    """
    region = f"[{WAITING}]"
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * (len(region) + then_us)}]
        host   {region}[cudaLaunchKernel>1]
        host    {inside}
        gpu 7  {" " * (len(region) + 10)}[gemm<1{" " * then_us}]
        """,
        "DAT001",
    )
    return finding


_GET = "[torch/utils/data/dataloader.py(9): _get_data              ]"


@pytest.mark.parametrize(
    ("polls", "ready"),
    [("  [<built-in method poll of select.poll object>]", False), ("", True)],
)
def test_taking_a_batch_that_is_ready_is_told_from_waiting_for_it(
    polls: str, *, ready: bool
) -> None:
    finding = _taken(f"{_GET}\n        host    {polls}")

    assert ("that is ready" in finding.message) is ready
    # What is ahead in one step says nothing of many.
    assert ("keeps batches ahead" in finding.advice) is ready
    assert "do not help" not in finding.advice
    (waits,) = (line.value for line in finding.evidence if line.label == "waits")
    assert (waits == 0) is ready


def test_without_stacks_a_short_wait_may_be_the_taking_of_a_batch() -> None:
    finding = _taken("")

    assert "stacks tell which it is" in finding.advice
    assert "times the present number" not in finding.advice


def test_without_stacks_a_long_wait_is_for_the_workers() -> None:
    assert "the workers do not keep up" in _taken("", then_us=20).advice


_BEGINS = "[torch/utils/data/dataloader.py(428): _get_iterator]"
_PROCESS = "[multiprocessing/process.py(110): start]"
_LAUNCH = "[cudaLaunchKernel>1]"


def _epoch(number: int, begin: str, inside: str) -> tuple[str, str, str]:
    """Return a drawn step that begins an epoch: the step, its calls, what is inside."""
    width = len(_BEGINS) + 2
    step = f"[ProfilerStep#{number}{' ' * (width + 8)}]"
    launch = f"[cudaLaunchKernel>{number}]"
    calls = f" {begin:{width - 2}} {launch}"
    return step, f"{calls:{len(step)}}", f"{'  ' + inside:{len(step)}}"


def _epochs(*begins: tuple[str, str]) -> str:
    """Return a drawing of steps; each begins with a call, and one inside of it."""
    drawn = [_epoch(at + 1, *one) for at, one in enumerate(begins)]
    steps, calls, inside = ("".join(part) for part in zip(*drawn, strict=True))
    gpu = "".join(
        f"{'':{len(step) - 9}}[gemm<{at + 1}] " for at, (step, _, _) in enumerate(drawn)
    )
    return f"""
        host  {steps}
        host  {calls}
        host  {inside}
        gpu 7 {gpu}
        """


def test_workers_that_are_started_in_each_epoch_are_to_be_kept() -> None:
    (finding,) = drawn_findings(_epochs(*[(_BEGINS, _PROCESS)] * 2), "DAT002")

    assert finding.advice.startswith("pass persistent_workers=True")
    assert finding.data["processes"] == 2


def test_workers_that_were_started_once_may_be_those_of_a_long_epoch() -> None:
    drawing = _epochs((_BEGINS, _PROCESS), ("", ""), ("", ""), ("", ""))

    assert not drawn_findings(drawing, "DAT002")


def test_a_loader_that_is_made_in_each_epoch_is_to_be_made_once() -> None:
    made = "[torch/utils/data/dataloader.py(9): __init__]"
    drawing = _epochs((_BEGINS, _PROCESS), (made, ""), (_BEGINS, _PROCESS))
    (finding,) = drawn_findings(drawing, "DAT002")

    assert finding.advice.startswith("make the DataLoader once")


def test_an_iterator_that_starts_no_process_has_no_workers_to_keep() -> None:
    assert not drawn_findings(_epochs(*[(_BEGINS, "")] * 2), "DAT002")


def test_more_workers_do_not_bring_the_first_batch_of_an_epoch() -> None:
    region = f"[{WAITING}]"
    (finding,) = drawn_findings(
        f"""
        host  [ProfilerStep#1{" " * (len(region) + 70)}]
        host   [torch/utils/data/dataloader.py(4): __iter__]
        host  {" " * 48}{region}[cudaLaunchKernel>1]
        gpu 7  {" " * (len(region) + 60)}[gemm<1 ]
        """,
        "DAT001",
    )

    assert "first batch of an epoch" in finding.message
    assert "num_workers" not in finding.advice


@pytest.mark.parametrize(
    ("samples", "stacking", "whole"),
    [(20, 3000, True), (8, 3000, False), (20, 9, False)],
)
def test_many_samples_that_cost_less_than_to_stack_them_are_picked_as_a_batch(
    samples: int, stacking: int, *, whole: bool
) -> None:
    picks = "[data.py(30): __getitem__]" * samples
    fields = "[torch/utils/data/_utils/collate.py(9): collate_tensor_fn]" * 2
    stacks = f"[{STACKS}{' ' * (stacking + len(fields) - len(STACKS))}]"
    rest = " " * max(0, 4000 - len(picks) - len(stacks))
    (finding,) = priced_findings(
        f"""
        host  [ProfilerStep#1{" " * (len(picks) + len(stacks) + len(rest) + 90)}]
        host   [{LOADING}{" " * (len(picks) + len(stacks) + len(rest) - 40)}]
        host    {picks}{stacks}
        host    {" " * (len(picks) + 1)}{fields}
        gpu 7   [gemm]
        """,
        "DAT001",
    )

    assert (f"{samples} samples" in finding.message) is whole
    assert ("batch_size=None it gets a list" in finding.advice) is whole
    assert ("BatchSampler" in finding.example) is whole
    assert not whole or 0 < finding.saves_ns < 4_000_000
