"""Serving traces: the phase of each iteration, and what a token costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from recordings import SERVING, loaded
from test_schemas import errors

from traceq import load
from traceq.analysis.patterns.iteration_marks import marked_iterations
from traceq.analysis.patterns.iterations import ITERATIONS, iterations
from traceq.analysis.summary import summarise
from traceq.analysis.time.serving import serving
from traceq.linter.rule import inputs
from traceq.report.summary import json as summary_json
from traceq.report.summary import text as summary_text
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

SDPA = "aten::scaled_dot_product_attention"
FLASH = "aten::_scaled_dot_product_flash_attention"
BF16 = "c10::BFloat16"


def attends(batch: int, queries: int, keys: int) -> dict[str, object]:
    """Return the arguments of an attention op."""
    query, key = [batch, 16, queries, 64], [batch, 16, keys, 64]
    return inputs([query, key, key], [BF16] * 3)


def named(folder: Path, name: str) -> dict[str, object]:
    """Return what an annotation says of the one iteration of a trace."""
    drawn = draw("""
        host   [ProfilerStep#1  ]
        host    [@iteration    ]
        host     [aten::mm]
    """)
    for event in drawn["traceEvents"]:
        event["name"] = event["name"].replace("iteration", name)
    file = folder / "trace.json"
    file.write_text(json.dumps(drawn))
    return marked_iterations(load(file)).drop("step").row(0, named=True)


@pytest.mark.parametrize(
    ("name", "phase", "counts"),
    [
        ("execute_context_1(512)_generation_3(3)", "mixed", [4, 515, None, 1, 512]),
        ("execute_context_2(9)_generation_0(0)", "prefill", [2, 9, None, 2, 9]),
        ("execute_context_0(0)_generation_16(16)", "decode", [16, 16, None, 0, 0]),
        (
            "execute_515_context_1(sq512sk700sqsq4sqsk4)_generation_3(sq3sk900sqsq3)",
            "mixed",
            [4, 515, 1600, 1, 512],
        ),
        ("step[EXTEND bs=2 toks=12]", "prefill", [2, 12, None, 2, 12]),
        ("step[DECODE bs=32]", "decode", [32, 32, None, 0, 0]),
        ("step[DECODE bs=4 sk=900 sqsq=4 sqsk=900]", "decode", [4, 4, 900, 0, 0]),
        (
            "step[MIXED bs=9 c=1 g=8 c_sq=512 c_sk=600 g_sq=8 g_sk=800]",
            "mixed",
            [9, 520, 1400, 1, 512],
        ),
        ("prefill[bs=2 tok=16384]", "prefill", [2, 16384, None, 2, 16384]),
        ("decode[bs=64 tok=64 d=0]", "decode", [64, 64, None, 0, 0]),
        ("execute_diffusion_2_1024x1024", "diffusion", [2, None, None, None, None]),
    ],
)
def test_an_engine_writes_what_an_iteration_does(
    tmp_path: Path, name: str, phase: str, counts: list[int | None]
) -> None:
    found = named(tmp_path, name)

    assert found.pop("phase") == phase
    assert found.pop("graph_batch") is None
    assert list(found.values()) == counts


def test_a_batch_that_is_padded_for_its_graph_is_counted_without_padding(
    tmp_path: Path,
) -> None:
    found = named(tmp_path, "step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]")

    assert (found["requests"], found["graph_batch"]) == (3, 4)


def generation(**args: dict[str, object]) -> pl.DataFrame:
    """Return the iterations of a loop that reads prompts once, then decodes twice."""
    width = len(SDPA) + 4
    prefill, decode = f"[{SDPA}]".ljust(width), f"[{FLASH}]".ljust(width + 5)
    steps = [prefill, decode, decode]
    marks = [
        f"[ProfilerStep#{at}".ljust(len(one) - 1) + "]" for at, one in enumerate(steps)
    ]
    drawing = f"""
        host   {"".join(marks)}
        host    {"".join(steps)}
    """
    return iterations(load_drawn(drawing, args=args))


def test_the_query_of_attention_tells_prefill_from_decode() -> None:
    found = generation(**{SDPA: attends(8, 256, 256), FLASH: attends(8, 1, 300)})

    assert found["phase"].to_list() == ["prefill", "decode", "decode"]
    assert found["known_by"].unique().to_list() == ["shapes"]
    assert found["requests"].to_list() == [8, 8, 8]
    assert found["tokens"].to_list() == [8 * 256, 8, 8]
    assert found["cache"].to_list() == [256, 300, 300]


def test_a_loop_that_never_decodes_is_no_serving() -> None:
    found = generation(**{SDPA: attends(8, 256, 256), FLASH: attends(8, 256, 256)})

    assert found.height == 0


def test_a_query_that_looks_at_nothing_but_itself_is_no_decode() -> None:
    found = generation(**{SDPA: attends(8, 1, 1), FLASH: attends(8, 1, 1)})

    assert found.height == 0


def test_prompts_and_decodes_in_one_iteration_are_mixed() -> None:
    one, both = f"[{FLASH}]  ", f"[{FLASH}][{SDPA}]"
    trace = load_drawn(
        f"""
        host   [ProfilerStep#0{" " * (len(one) - 16)}][ProfilerStep#1{" " * len(both)}]
        host    {one}{both}
        """,
        args={FLASH: attends(16, 1, 500), SDPA: attends(1, 512, 512)},
    )
    _, found = iterations(trace).to_dicts()

    assert found["phase"] == "mixed"
    assert (found["requests"], found["tokens"]) == (17, 528)
    assert (found["prefill_requests"], found["prefill_tokens"]) == (1, 512)


def test_a_backward_makes_it_training() -> None:
    node = "[autograd::engine::evaluate_function: MmBackward0]"
    trace = load_drawn(
        f"""
        host   [ProfilerStep#0{" " * 100}]
        host    [{FLASH}]{node}
        """,
        args={FLASH: attends(16, 1, 500)},
    )

    assert iterations(trace).height == 0


def test_only_traces_of_serving_have_iterations(whole_trace: Path) -> None:
    trace = loaded(whole_trace)
    found = iterations(trace)

    assert found.schema == pl.Schema(ITERATIONS.dtypes)
    marked = whole_trace in SERVING.values() and "capture" not in whole_trace.name
    assert (serving(trace) is not None) == marked
    assert found.height == (trace.steps.height if marked else 0)


@pytest.fixture
def decode() -> Path:
    if not SERVING:
        pytest.skip("other people's traces are not here")
    return SERVING["serving/sglang_decode"]


def test_a_replayed_graph_has_the_batch_size_of_its_capture(decode: Path) -> None:
    capture = SERVING["serving/sglang_decode.capture_bs32"]

    (without,) = iterations(loaded(decode)).to_dicts()
    (found,) = iterations(load(decode, captures=[capture])).to_dicts()

    assert (without["run"], without["graph_batch"]) == ("graph", None)
    assert (found["run"], found["graph_batch"], found["requests"]) == ("graph", 32, 32)


def test_a_summary_says_what_a_token_costs(decode: Path) -> None:
    summary = summarise(loaded(decode))

    text = summary_text.render([summary], width=100, color=False)
    assert "1 iteration: 1 decode, known by the engine's annotations" in text
    assert "3,087" in text  # 32 tokens in 10.37 ms
    document = json.loads(summary_json.render([summary]))
    assert errors("summary", document) == []
    (phase,) = document["traces"][0]["serving"]["phases"]
    assert phase["tokens_per_s"] == pytest.approx(32 / 0.010366888)
