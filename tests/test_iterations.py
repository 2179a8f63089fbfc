"""Iterations that nobody marked: how many, where they begin, with what confidence."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from iterations import cut, found_in, stripped
from recordings import TRACES, path_of

from traceq import load, regions, roofline
from traceq.errors import UsageError
from traceq.formats.chrome import read
from traceq.inputs.options import LoadOptions
from traceq.ranks.digest import Digest, digest_of
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from traceq.model.trace import Trace

LAYER = "[aten::layer_norm][aten::linear][aten::gelu][aten::linear][aten::add]"
DECODE = f"[aten::embedding]{LAYER * 3}[aten::matmul][aten::argmax][aten::item]"
PREFILL = f"[aten::embedding][aten::triu][aten::masked_fill]{DECODE[17:]}"
BACKWARD = "[autograd::engine::evaluate_function: AddmmBackward0]"
TRAIN = f"[aten::to]{LAYER * 2}[aten::mse_loss]{BACKWARD * 2}[aten::_foreach_add_]"

EVALUATE = "[aten::to][aten::conv2d][aten::relu][aten::conv2d][aten::sum][aten::item]"
REPLAY = "[aten::copy_][cudaGraphLaunch][aten::argmax][aten::add_]"


def part_of(loop: str, share: float) -> tuple[str, str]:
    """Return an iteration in two parts."""
    ops = loop.split("[")[1:]
    at = round(share * len(ops))
    first, rest = ("".join(f"[{op}" for op in part) for part in (ops[:at], ops[at:]))
    return first, rest


def starts(trace: Trace) -> list[str]:
    """Return the first op of each step."""
    ops = trace.ops.drop_nulls("step").sort("ts").group_by("step", maintain_order=True)
    return ops.agg(pl.col("name").first().cast(pl.String))["name"].to_list()


def test_a_decode_loop_has_as_many_iterations_as_embeddings() -> None:
    trace = load_drawn(f"host {DECODE * 5}")

    assert (trace.facts.steps_from, trace.facts.steps_sure) == (
        "what repeats",
        "likely",
    )
    assert starts(trace) == ["aten::embedding"] * 5


def test_layers_of_one_pass_are_no_iterations() -> None:
    trace = load_drawn(f"host [aten::embedding]{LAYER * 24}[aten::matmul][aten::item]")

    assert trace.facts.steps_from == ""
    assert not trace.steps.height


def test_layers_that_wait_are_no_iterations() -> None:
    layer = f"{LAYER}[aten::nonzero][aten::item]"
    trace = load_drawn(f"host [aten::conv2d][aten::flatten]{layer * 8}[aten::mean]")

    assert not trace.steps.height


def test_a_prefill_is_the_first_iteration_of_its_decode_loop() -> None:
    trace = load_drawn(f"host {PREFILL}{DECODE * 6}")

    assert trace.steps.height == 7
    assert "aten::triu" in trace.ops.filter(pl.col("step") == 0)["name"].to_list()


def test_tokens_of_several_texts_are_iterations_and_not_the_texts() -> None:
    trace = load_drawn(f"host {(PREFILL + DECODE * 39) * 3}")

    assert trace.steps.height == 120


def test_an_evaluation_loop_that_waits_once_an_iteration_is_a_guess() -> None:
    batch = "[aten::to][aten::conv2d][aten::relu][aten::conv2d][aten::relu][aten::item]"

    trace = load_drawn(f"host {batch * 6}")

    assert trace.facts.steps_sure == "guess"
    assert starts(trace) == ["aten::to"] * 6


def test_a_step_is_from_forward_to_optimizer() -> None:
    trace = load_drawn(f"host {TRAIN * 4}")

    assert starts(trace) == ["aten::to"] * 4
    assert trace.ops["step"].to_list() == sorted([0, 1, 2, 3] * (trace.ops.height // 4))


def test_parts_of_a_step_without_its_optimizer_are_no_steps() -> None:
    part = TRAIN.removesuffix("[aten::_foreach_add_]")

    trace = load_drawn(f"host {(part * 3 + TRAIN) * 4}")

    assert trace.steps.height == 4


def test_steps_that_the_recording_cuts_are_left_out() -> None:
    half = TRAIN[TRAIN.index("[aten::mse_loss]") :]
    trace = load_drawn(f"host {half}{TRAIN * 3}[aten::to][aten::layer_norm]")

    assert starts(trace) == ["aten::to"] * 3
    assert trace.ops["step"].null_count() > 0


@pytest.mark.parametrize("loop", [TRAIN, DECODE, EVALUATE, REPLAY])
@pytest.mark.parametrize("begin", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("end", [0.3, 0.6])
def test_a_window_of_time_has_the_iterations_that_are_whole(
    loop: str, begin: float, end: float
) -> None:
    first, last = (part_of(loop, share) for share in (begin, end))
    trace = load_drawn(f"host {first[1]}{loop * 6}{last[0]}")

    assert trace.facts.steps_from == "what repeats"
    whole = (len(first[1]) + len(last[0])) / len(loop) + 6
    assert trace.steps.height in {int(whole) - 1, int(whole)}
    assert trace.steps["dur"].median() == len(loop) * 1_000


def test_layers_of_a_pass_that_a_window_cuts_are_no_iterations() -> None:
    trace = load_drawn(f"host {LAYER[18:]}{LAYER * 12}[aten::matmul][aten::item]")

    assert not trace.steps.height


def test_two_optimizers_of_one_class_take_turns_where_the_loop_says_so() -> None:
    step = "[Optimizer.step#Adam.step]"
    critic = f"[aten::randn]{LAYER}{BACKWARD}{step}"
    generator = f"[aten::randn]{LAYER * 3}[aten::neg]{BACKWARD * 4}{step}"

    trace = load_drawn(f"host {(critic * 3 + generator) * 5}")

    assert trace.facts.steps_from == "Optimizer.step"
    assert trace.steps.height == 5


def test_iterations_of_sglang_last_until_the_next_one() -> None:
    trace = _of_names("step[EXTEND bs=2 toks=12]", "step[DECODE bs=2]")

    assert trace.facts.steps_from == "SGLang's step[…]"
    assert trace.facts.steps_sure == "certain"
    assert trace.steps.select("ts", "dur").rows() == [(0, 120_000), (120_000, 100_000)]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("execute_context_1(512)_generation_3(3)", "vLLM's execute_…"),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk9sqsq32sqsk9)",
            "vLLM's execute_…",
        ),
        ("decode[bs=64 tok=64]", "ATOM's prefill[…] and decode[…]"),
        ("execute_diffusion_1_1024x1024", "vLLM-Omni's execute_diffusion_…"),
        ("[pl][profile]run_training_batch", "Lightning's run_training_batch"),
        ("train_step 17", "regions named train_step …"),
        ("timed region", "regions named timed region"),
    ],
)
def test_what_is_marked_as_an_iteration_is_one(name: str, source: str) -> None:
    trace = _of_names(name, name)

    assert trace.facts.steps_from == source
    assert trace.steps.height == 2


@pytest.mark.parametrize("name", ["FORWARD", "nccl:all_reduce", "layer 3", "stepwise"])
def test_other_regions_are_no_steps(name: str) -> None:
    assert not _of_names(name, name).steps.height


def _of_names(*regions: str) -> Trace:
    """Return a trace with these regions, 100 us each and 20 us apart."""
    lane = f"[@region{' ' * 91}]" + " " * 20
    work = f"    [aten::mm{' ' * 60}]" + " " * 45
    document = draw(f"host {lane * len(regions)}\nhost {work * len(regions)}")
    events = [item for item in document["traceEvents"] if item["name"] == "region"]
    for event, name in zip(events, regions, strict=True):
        event["name"] = name
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        return load(file, cache=False)


@pytest.mark.real
def test_the_user_says_what_steps_are_taken_from(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    steps = "".join(f"[ProfilerStep#{item}{' ' * 100}]" for item in (1, 2))
    file.write_text(json.dumps(draw(f"host {steps}\nhost {DECODE * 3}")))

    counts = {
        by: load(file, steps_by=by).steps.height
        for by in ("", "profiler", "repeats", "annotation", "none")
    }

    assert counts == {"": 2, "profiler": 2, "repeats": 3, "annotation": 0, "none": 0}
    with pytest.raises(UsageError, match="steps cannot be taken from 'luck': give"):
        load(file, steps_by="luck")


def test_regions_and_roofline_take_steps_from_what_they_are_told() -> None:
    trace = TRACES["attn_flash"]

    for by, count in (("profiler", 2), ("none", 1)):
        costs = regions(trace, by="module", steps_by=by).to_dict()
        peaks = roofline(trace, steps_by=by).to_dict()
        assert costs["traces"][0]["steps"] == peaks["steps"] == count


def test_ranks_take_steps_from_what_they_are_told() -> None:
    trace = TRACES["attn_flash"]
    steps = [
        Digest(digest_of(str(trace), options=LoadOptions(steps_by=by), findings=False))
        .table("steps")
        .height
        for by in ("profiler", "none")
    ]

    assert steps == [2, 0]


@pytest.mark.real
def test_who_asks_for_what_repeats_gets_it_without_a_landmark(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(draw(f"host {LAYER * 6}")))

    assert not load(file).steps.height
    assert load(file, steps_by="repeats").steps.height == 6


@pytest.mark.parametrize("name", ["attn_flash", "graph_replay", "moe_dropless"])
def test_steps_without_their_marks_are_as_many_and_as_long(name: str) -> None:
    raw = read(TRACES[name]).tables
    marked, steps = found_in(raw), found_in(stripped(raw, ""))

    assert marked.source == "ProfilerStep"
    assert steps.source == "what repeats"
    assert steps.windows.height == marked.windows.height
    for known, other in zip(marked.windows["ts"], steps.windows["ts"], strict=True):
        length = (marked.windows["end"] - marked.windows["ts"]).mean()
        assert abs(known - other) < 0.1 * length


@pytest.mark.parametrize("name", ["attn_flash", "moe_loop", "copies", "norm_fused"])
def test_one_step_has_no_iterations(name: str) -> None:
    raw = read(TRACES[name]).tables
    first = found_in(raw).windows.row(0, named=True)

    assert not found_in(cut(raw, first["ts"], first["end"])).windows.height


@pytest.mark.parametrize("name", ["sglang_prefilldecode", "sglang_decode"])
def test_one_iteration_of_a_server_is_one_if_marked_and_none_if_not(name: str) -> None:
    if f"serving/{name}" not in TRACES:
        pytest.skip(f"{name} is not ours to give away")
    raw = read(TRACES[f"serving/{name}"]).tables

    assert found_in(raw).windows.height == 1
    assert not found_in(stripped(raw, "")).windows.height


def test_replays_of_a_graph_are_iterations() -> None:
    raw = read(path_of("public/a100_vit_graph.json.gz")).tables

    assert found_in(raw).source == "regions named timed region"
    assert found_in(stripped(raw, "")).windows.height == 5
    assert found_in(stripped(raw, ""), "graph").windows.height == 5
