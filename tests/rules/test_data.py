"""DAT: input that the GPU waits for, on real traces."""

from __future__ import annotations

from linting import case_findings, drawn_findings

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
        "data.py:30 __getitem__",
        26_000,
        1,
    )
