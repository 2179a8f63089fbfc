"""MEM: rules on memory snapshots, on real ones and drawn ones."""

from __future__ import annotations

import gzip
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from linting import (
    bundled_rules,
    case_snapshot,
    findings_of,
    memory_findings,
    mentions,
    outcome,
)
from recordings import OWN_SNAPSHOTS, PUBLIC_SNAPSHOTS, loaded, path_of

from traceq.analysis.memory.history import History
from traceq.formats.snapshot import read_snapshot
from traceq.linter.need import Need
from traceq.model.recording import Recording
from traceq.report.lint.content import evidence
from traceq.testing import draw_history, load_drawn, load_history

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter import Finding
    from traceq.model.snapshot import Snapshot

MIB = 1 << 20
ENDING = ".snapshot.pickle.gz"
AUTOCAST = {"MEM007", "MEM009"}
# What is wrong with the memory of each program; all others are clean.
SICK = {
    "attn_manual": {"MEM006"},
    "copies": {"MEM009"},
    "graph_rerecord": {"MEM004"},
    "layernorm_autocast": AUTOCAST,
    "memory_leak": {"MEM003"},
    "norm_mismatch": AUTOCAST,
    "oom_fragmented": {"MEM010"},
}


def one(snapshot: Snapshot | str, *codes: str) -> Finding:
    (finding,) = memory_findings(snapshot, *codes)
    return finding


def said(finding: Finding, what: str) -> list[str]:
    return [evidence(entry) for entry in finding.evidence if entry.label == what]


def peak(name: str) -> int:
    snapshot = case_snapshot(f"{name}{ENDING}")
    return History(snapshot).peak_bytes(0)


# Real snapshots.


@pytest.mark.parametrize("name", OWN_SNAPSHOTS)
def test_each_program_has_its_findings_and_no_others(name: str) -> None:
    findings = memory_findings(case_snapshot(f"{name}{ENDING}"), "MEM")

    assert {finding.code for finding in findings} == SICK.get(name, set())


@pytest.mark.parametrize("name", PUBLIC_SNAPSHOTS or ["public/snapshot_train"])
def test_no_rule_fails_on_a_snapshot_of_any_age(name: str) -> None:
    snapshot = case_snapshot(f"{name}.pickle.gz")

    result = outcome(Recording(name, snapshots={0: snapshot}), "MEM")

    assert not result.crashed
    assert "MEM003" not in {finding.code for finding in result.findings}


def test_the_leak_is_at_the_line_that_makes_what_is_kept() -> None:
    finding = one(case_snapshot(f"memory_leak{ENDING}"), "MEM003")

    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 168)
    assert finding.cost_bytes == 32 * MIB
    assert mentions(finding, "32.0 MiB", "1 line")


def test_a_leak_is_an_error_with_the_steps_that_are_left() -> None:
    snapshot = case_snapshot(f"memory_leak{ENDING}")
    trace = loaded(path_of("memory_leak.trace.json.gz"))
    recording = Recording("run", trace, snapshots={0: snapshot})

    (finding,) = outcome(recording, "MEM003").findings

    # 139 GiB of an H200 less 1.4 GiB, 32 MiB a step.
    assert finding.severity == "error"
    assert mentions(finding, "4,400 steps")


def test_fragmentation_is_why_an_allocation_failed() -> None:
    finding = one(case_snapshot(f"oom_fragmented{ENDING}"), "MEM010")

    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 198)
    assert finding.severity == "error"
    assert mentions(finding, "512 MiB", "2.09 GiB", 195, "11.0 MiB")
    assert said(finding, "held by") == [
        "dev_cases.py:195 oom: 1.71 GiB in 195 allocations, 2.09 GiB free in the same"
        " segments"
    ]
    # Not expandable segments, which do not help there.
    assert finding.advice.startswith(
        "the device has room, but a limit forbids using it"
    )


def test_attention_scores_cost_what_the_repaired_twin_does_not_need() -> None:
    finding = one(case_snapshot(f"attn_manual{ENDING}"), "MEM006")

    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 54)
    assert finding.cost_bytes == pytest.approx(
        peak("attn_manual") - peak("attn_flash"), rel=0.02
    )


def test_fp32_logits_and_their_gradients_are_counted_together() -> None:
    finding = one(case_snapshot(f"norm_mismatch{ENDING}"), "MEM007")

    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 71)
    assert finding.data["float32_bytes"] == 2000 * MIB
    # Without them, the peak is at another moment.
    assert finding.cost_bytes < 3000 * MIB


def test_autocast_copies_of_weights_are_half_of_them() -> None:
    finding = one(case_snapshot(f"layernorm_autocast{ENDING}"), "MEM009")

    assert mentions(finding, 17, "101 MiB")
    assert said(finding, "weights") == ["202 MiB in fp32"]
    assert said(finding, "copies") == ["101 MiB in 16-bit"]


def test_there_are_no_more_copies_of_a_size_than_weights() -> None:
    finding = one(
        """
        cast = at::autocast::cached_cast, at::_ops::linear::call, model.py:12 forward
        gradient = torch::autograd::Engine::evaluate_function
        region       [ProfilerStep#1                          ]
        region        [forward      ][backward   ][optimizer ]
        weights     <64M
        cast           [32M                    ]
        cast             [32M                  ]
        gradient                        [64M             ]
        """,
        "MEM009",
    )

    assert finding.count == 1


def python_only(name: str, folder: Path) -> Snapshot:
    """Return a snapshot as it is with stacks="python", as traceq collect records."""
    content = pickle.loads(gzip.decompress(OWN_SNAPSHOTS[name].read_bytes()))  # noqa: S301 - ours
    holders: list[dict[str, Any]] = [
        *(event for trace in content["device_traces"] for event in trace),
        *content["segments"],
        *(block for segment in content["segments"] for block in segment["blocks"]),
    ]
    for holder in holders:
        if "frames" in holder:
            holder["frames"] = [frame for frame in holder["frames"] if frame["line"]]
    return read(content, folder)


def read(content: dict[str, Any], folder: Path) -> Snapshot:
    path = folder / "made.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    return read_snapshot(path)


def test_what_python_stacks_do_not_show_is_skipped(tmp_path: Path) -> None:
    snapshot = python_only("attn_manual", tmp_path)

    result = outcome(Recording("run", snapshots={0: snapshot}), "MEM")

    reasons = {entry.code: entry.reason for entry in result.skipped}
    unable = {
        code for code, reason in reasons.items() if reason == Need.OPERATORS.value
    }
    assert unable == {"MEM006", "MEM007", "MEM008", "MEM009"}


def test_with_python_stacks_the_trace_shows_what_was_cast(tmp_path: Path) -> None:
    snapshot = python_only("layernorm_autocast", tmp_path)
    trace = loaded(path_of("layernorm_autocast.trace.json.gz"))

    (finding,) = findings_of(Recording("run", trace, snapshots={0: snapshot}), "MEM009")

    assert mentions(finding, 17, "101 MiB")


def test_with_python_stacks_the_trace_shows_what_attention_keeps(
    tmp_path: Path,
) -> None:
    snapshot = python_only("attn_manual", tmp_path)
    trace = loaded(path_of("attn_manual.trace.json.gz"))

    (finding,) = outcome(
        Recording("run", trace, snapshots={0: snapshot}), "MEM006"
    ).findings

    assert finding.cost_bytes == 768 * MIB
    assert (finding.place.file, finding.place.line) == ("dev_cases.py", 54)


@pytest.mark.parametrize(
    ("name", "code", "module", "op"),
    [
        ("memory_leak", "MEM003", "Linear_17", "aten::linear, aten::randn"),
        ("attn_manual", "MEM006", "LM_0/Block_0", "aten::softmax"),
        ("layernorm_autocast", "MEM009", "LM_0/Linear_16", "aten::linear"),
    ],
)
def test_a_finding_has_the_module_and_the_op_of_the_trace(
    name: str, code: str, module: str, op: str
) -> None:
    snapshot = case_snapshot(f"{name}{ENDING}")
    trace = loaded(path_of(f"{name}.trace.json.gz"))

    (finding,) = findings_of(Recording(name, trace, snapshots={0: snapshot}), code)

    assert finding.place.module == module
    assert said(finding, "op") == [op]


# Leaks.


def test_what_the_next_step_but_one_frees_is_not_a_leak() -> None:
    assert not memory_findings(
        """
        region             [ProfilerStep#1][ProfilerStep#2][ProfilerStep#3]
        weights           <500M
        loaded ahead      <16M    ]
        loaded ahead      <16M                    ]
        train.py:12 step         [16M                             ]
        train.py:12 step                         [16M
        train.py:12 step                                         [16M
        """,
        "MEM003",
    )


def test_what_only_the_first_step_makes_is_not_a_leak() -> None:
    assert not memory_findings(
        """
        region             [ProfilerStep#1][ProfilerStep#2]
        train.py:9 step     [64M  ]         [64M  ]
        train.py:12 step            [256M
        """,
        "MEM003",
    )


def test_a_leak_below_the_threshold_is_not_reported() -> None:
    assert not memory_findings(
        """
        region             [ProfilerStep#1][ProfilerStep#2]
        train.py:12 step     [512
        train.py:12 step                     [512
        """,
        "MEM003",
    )


def test_a_kept_graph_is_inferred_from_its_many_lines() -> None:
    lines = "\n".join(
        f"model.py:{line} forward{' ' * (5 * late + line)}[{line}M"
        for late in (1, 5)
        for line in (2, 3, 4, 5)
    )
    regions = "region           [ProfilerStep#1     ][ProfilerStep#2     ]"

    finding = one(f"{regions}\n{lines}", "MEM003")

    assert mentions(finding, "14.0 MiB", "4 lines")
    assert finding.place.line == 5
    assert "autograd graph" in finding.advice


def test_without_two_steps_leaks_are_not_looked_for() -> None:
    history = "region [ProfilerStep#1 ]\ntrain.py:3 step [16M"

    result = outcome(Recording("x", snapshots={0: load_history(history)}), "MEM003")

    assert [entry.reason for entry in result.skipped] == [Need.MEMORY_STEPS.value]


# Reserved memory.


def test_a_history_that_allocates_little_does_not_show_what_is_unused() -> None:
    assert not memory_findings(
        """
        segment           <1G
        train.py:3 step    [1M  ] [1M   ]
        """,
        "MEM004",
    )


def test_whole_free_segments_are_told_from_fragmentation() -> None:
    finding = one(
        """
        train.py:3 step    [90M  ]
        train.py:4 step            [100M  ]
        train.py:5 step                    [120M  ]
        """,
        "MEM004",
    )

    assert finding.subject == "segments"
    assert finding.place.file is None
    assert "empty_cache() once" in finding.advice


def test_the_line_that_empties_the_cache_is_named() -> None:
    finding = one(
        """
        emptied = torch/cuda/memory.py:222 empty_cache, train.py:12 step
        region          [ProfilerStep#1  ][ProfilerStep#2  ]
        segment emptied  [64M          ]   [64M          ]
        train.py:9 step   [64M        ]     [64M        ]
        """,
        "MEM005",
    )

    assert finding.subject == "empty_cache"
    assert (finding.place.file, finding.place.line) == ("train.py", 12)
    assert "remove torch.cuda.empty_cache()" in finding.advice


def test_segments_that_come_and_go_once_are_not_churn() -> None:
    assert not memory_findings(
        """
        region          [ProfilerStep#1  ][ProfilerStep#2  ][ProfilerStep#3  ]
        segment          [64M          ]   [64M
        train.py:9 step   [64M        ]     [64M        ]     [64M        ]
        """,
        "MEM005",
    )


# Failed allocations.


def test_expandable_segments_are_for_fragments_on_a_full_device() -> None:
    history = """
    segment                <220M
    segment                <220M
    train.py:9 main         [9M
    train.py:10 main        [211M   ]
    train.py:9 main         [9M
    train.py:10 main        [211M   ]
    oom train.py:12 main              [300M of {free}]
    """

    limited, full = (one(history.format(free=free), "MEM010") for free in ("9G", "1M"))

    assert (limited.subject, full.subject) == ("fragmented", "fragmented")
    assert "expandable_segments" not in limited.advice
    assert "expandable_segments:True" in full.advice


def test_a_limit_is_told_from_a_full_device() -> None:
    history = """
    segment                <80M
    train.py:9 main         [78M
    oom train.py:12 main              [16M of {free}]
    """

    limited, full = (one(history.format(free=free), "MEM010") for free in ("9G", "1M"))

    assert limited.subject == "limited"
    assert "set_per_process_memory_fraction" in limited.advice
    assert full.subject == "full"
    assert "free first train.py:9 main" in full.advice


def test_what_a_model_needs_is_dropped_last() -> None:
    finding = one(
        """
        made = torch/nn/modules/module.py:1343 to, train.py:3 main
        kept = train.py:8 main
        segment                <80M
        made                    [60M
        kept                       [10M
        oom train.py:12 main              [16M of 1M]
        """,
        "MEM010",
    )

    holders = said(finding, "held by")
    assert holders[0].startswith("train.py:8 main: 10.0 MiB")
    assert holders[1].startswith("train.py:3 main: 60.0 MiB in 1 allocation of weights")


def test_memory_of_another_stream_is_of_no_use(tmp_path: Path) -> None:
    content = draw_history(
        """
        segment                <80M
        segment                <40M
        train.py:9 main         [78M
        train.py:10 main         [30M
        oom train.py:12 main              [8M of 1M]
        """
    )
    content["segments"][1]["stream"] = 7

    finding = one(read(content, tmp_path), "MEM010")

    assert finding.subject == "full"
    assert said(finding, "streams") == ["10.0 MiB more are free, but for other streams"]


def test_a_failure_after_which_the_program_goes_on_is_a_warning() -> None:
    after = "train.py:20 main" + " " * 22 + "[1K]" * 100
    end = """
    segment                <80M
    train.py:9 main         [78M
    oom train.py:12 main              [16M of 1M]
    """

    assert one(end, "MEM010").severity == "error"
    finding = one(f"{end}\n    {after}", "MEM010")
    assert finding.severity == "warning"
    assert said(finding, "after") == ["the program goes on: 100 allocations follow"]


def test_failures_at_one_line_are_one_finding_with_a_count() -> None:
    finding = one(
        """
        segment                <80M
        train.py:9 main         [78M
        oom train.py:12 main              [16M of 1M] [16M of 1M]
        """,
        "MEM010",
    )

    assert finding.count == 2


def test_every_rule_on_snapshots_is_skipped_without_one() -> None:
    on_memory = {
        code for code, rule in bundled_rules().items() if Need.SNAPSHOT in rule.needs
    }

    skipped = outcome(Recording("nothing"), *on_memory).skipped

    assert {entry.code for entry in skipped} == on_memory
    assert {entry.reason for entry in skipped} == {Need.SNAPSHOT.value}


def test_copies_of_weights_save_no_more_than_they_hold() -> None:
    """At the same line, autocast casts an activation that is as large as a copy."""
    (finding,) = memory_findings(
        """
        linear = at::autocast::cached_cast, at::_ops::linear::call, model.py:12 forward
        gradient = torch::autograd::Engine::evaluate_function
        region       [ProfilerStep#1                          ]
        region        [forward      ][backward   ][optimizer ]
        weights     <64M
        linear         [32M                    ]
        linear           [32M                  ]
        gradient                        [64M             ]
        """,
        "MEM009",
    )

    assert mentions(finding, 1, "32.0 MiB")
    assert finding.cost_bytes == 32 << 20


def test_copies_that_save_less_than_they_hold_say_so() -> None:
    (finding,) = memory_findings(
        """
        linear = at::autocast::cached_cast, at::_ops::linear::call, model.py:12 forward
        update = at::_ops::sqrt::call, torch/optim/adamw.py:90 step, train.py:12 step
        gradient = torch::autograd::Engine::evaluate_function
        region       [ProfilerStep#1                          ]
        region        [forward      ][backward   ][optimizer ]
        weights     <64M
        linear         [32M                    ]
        gradient                        [64M             ]
        update                                     [20M]
        """,
        "MEM009",
    )

    assert finding.cost_bytes == 12 << 20
    (saves,) = (line for line in finding.evidence if line.label == "saves")
    assert saves.value == 12 << 20
    assert saves.note == "of the peak: another moment is the highest then"


MANY = """
    matmul = at::_ops::bmm::call, {around}model.py:20 attention, train.py:9 step
    then = at::_ops::softmax_int::call, {around}model.py:21 attention, train.py:9 step
    gradient = torch::autograd::Engine::evaluate_function
    region       [ProfilerStep#1                    ]
    region        [forward            ][backward   ]
    weights     <{weights}
    matmul         [{size}   ]
    then               [{size}                     ]
    gradient                            [1M  ]
"""


@pytest.mark.parametrize(
    ("weights", "size", "severity"),
    [("100M", "64M", "info"), ("100M", "800M", "warning"), ("90G", "2G", "info")],
)
def test_scores_that_take_little_of_the_peak_are_minor(
    weights: str, size: str, severity: str
) -> None:
    finding = one(MANY.format(around="", weights=weights, size=size), "MEM006")

    assert finding.severity.value == severity


def test_scores_of_torch_s_own_attention_are_not_computed_without_weights() -> None:
    torch = "torch/nn/functional.py:6200 multi_head_attention_forward, "

    finding = one(MANY.format(around=torch, weights="100M", size="64M"), "MEM006")

    assert "pass need_weights=False to nn.MultiheadAttention" in finding.advice
    assert "need_weights=False" in finding.example


@pytest.mark.parametrize("code", ["MEM008", "MEM009"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_single_gpu_is_not_told_to_shard(code: str, rank: int) -> None:
    drawn = bundled_rules()[code].examples[0].history
    recording = Recording("run", snapshots={rank: load_history(drawn)})

    (finding,) = findings_of(recording, code)

    assert ("FSDP" in finding.advice) == bool(rank)
    assert ("fully_shard" in finding.example) == (bool(rank) and code == "MEM009")


@pytest.mark.parametrize(("total", "minor"), [(3 << 30, False), (30 << 30, True)])
def test_scores_are_minor_where_most_of_the_gpu_is_not_reserved(
    total: int, *, minor: bool
) -> None:
    segment = "    segment      <2G\n"
    history = load_history(segment + MANY.format(around="", weights="1M", size="800M"))
    trace = load_drawn(
        """
        host [ProfilerStep#1    ]
        host  [cudaLaunchKernel>1]
        gpu 7   [k<1]
        """,
        None,
        {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": total},
    )

    recording = Recording("x", trace, snapshots={0: history})
    (finding,) = outcome(recording, "MEM006").findings

    assert bool(finding.minor) is minor
