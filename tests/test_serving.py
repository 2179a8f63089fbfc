"""Serving traces: the phase of each iteration, and what a token costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from linting import bundled_rules, drawn_findings, outcome
from recordings import SERVING, SHARED, loaded
from test_schemas import errors

from traceq import load
from traceq.analysis.patterns.iteration_marks import marked_iterations
from traceq.analysis.patterns.iterations import ITERATIONS, iterations
from traceq.analysis.patterns.kv_cache import reorders_cache
from traceq.analysis.summary import summarise
from traceq.analysis.time.serving import serving
from traceq.linter.rule import inputs
from traceq.model.finding import Finding, Severity
from traceq.model.recording import Recording
from traceq.report.summary import json as summary_json
from traceq.report.summary import text as summary_text
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from traceq.model.trace import Trace

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
    result = named(tmp_path, name)

    assert result.pop("phase") == phase
    assert result.pop("graph_batch") is None
    assert result.pop("decodes") == (phase == "decode")
    assert list(result.values()) == counts


def test_a_batch_that_is_padded_for_its_graph_is_counted_without_padding(
    tmp_path: Path,
) -> None:
    result = named(tmp_path, "step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]")

    assert (result["requests"], result["graph_batch"]) == (3, 4)


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
    table = generation(**{SDPA: attends(8, 256, 256), FLASH: attends(8, 1, 300)})

    assert table["phase"].to_list() == ["prefill", "decode", "decode"]
    assert table["known_by"].unique().to_list() == ["shapes"]
    assert table["requests"].to_list() == [8, 8, 8]
    assert table["tokens"].to_list() == [8 * 256, 8, 8]
    assert table["cache"].to_list() == [256, 300, 300]


def whole_generation(*, embeds: bool = True) -> Trace:
    """Return two steps that read prompts, and then make three tokens each."""
    ids = "[aten::embedding]" if embeds else " " * 17
    prefill, decode = f"[{SDPA}]", f"{ids}[{FLASH}][aten::add          ]"
    width = len(prefill) + 3 * len(decode)
    before = " " * (17 + len(FLASH) + 3)

    def each(drawn: str) -> str:
        tokens = [(before + drawn.format(at)).ljust(len(decode)) for at in range(6)]
        tokens[0::3] = [" " * len(prefill) + token for token in tokens[0::3]]
        return "".join(tokens)

    return load_drawn(
        f"""
        host   {"[ProfilerStep#1".ljust(width - 1)}]{"[ProfilerStep#2".ljust(width)}]
        host   {2 * (prefill + 3 * decode)}
        host   {each("[cuLaunchKernel>{}]")}
        gpu 7  {each("           [k<{}]")}
        """,
        args={
            SDPA: attends(8, 256, 256),
            FLASH: attends(8, 1, 300),
            "aten::embedding": inputs([[32000, 64], [8, 1]], [BF16, "long int"]),
        },
    )


def test_a_step_may_decode_several_times() -> None:
    trace = whole_generation()
    table, measured = iterations(trace), serving(trace)

    assert table["phase"].to_list() == ["decode", "decode"]
    assert table["decodes"].to_list() == [3, 3]
    assert table["tokens"].to_list() == [3 * 8, 3 * 8]
    assert measured is not None
    (phase,) = measured.phases.to_dicts()
    assert (phase["iterations"], phase["tokens"]) == (3, 8)
    assert phase["time"] == table["time"][1] // 3


def test_without_the_ids_it_is_unknown_how_often_a_step_decodes() -> None:
    table = iterations(whole_generation(embeds=False))

    assert table["phase"].to_list() == ["decode", "decode"]
    assert table["decodes"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("embeds", "says"),
    [
        (True, "6 of 6 decode iterations run without a CUDA graph, 3 launches a step"),
        (False, "decode runs without a CUDA graph in 2 of 2 steps, 3 launches a step"),
    ],
)
def test_decodes_of_a_step_are_counted_if_they_can_be(
    *, embeds: bool, says: str
) -> None:
    report = outcome(Recording("trace", whole_generation(embeds=embeds)), "SRV001")

    assert [finding.message for finding in report.findings] == [says]


@pytest.mark.real
def test_a_summary_counts_the_decodes_of_a_step() -> None:
    summary = summarise(whole_generation())

    text = summary_text.render([summary], width=100, color=False)
    assert "6 iterations in 2 steps: 6 decode, known by shapes" in text


def test_a_loop_that_never_decodes_is_no_serving() -> None:
    table = generation(**{SDPA: attends(8, 256, 256), FLASH: attends(8, 256, 256)})

    assert table.height == 0


def test_a_query_that_looks_at_nothing_but_itself_is_no_decode() -> None:
    table = generation(**{SDPA: attends(8, 1, 1), FLASH: attends(8, 1, 1)})

    assert table.height == 0


def test_prompts_and_decodes_in_one_iteration_are_mixed() -> None:
    one, both = f"[{FLASH}]  ", f"[{FLASH}][{SDPA}]"
    trace = load_drawn(
        f"""
        host   [ProfilerStep#0{" " * (len(one) - 16)}][ProfilerStep#1{" " * len(both)}]
        host    {one}{both}
        """,
        args={FLASH: attends(16, 1, 500), SDPA: attends(1, 512, 512)},
    )
    _, result = iterations(trace).to_dicts()

    assert result["phase"] == "mixed"
    assert (result["requests"], result["tokens"]) == (17, 528)
    assert (result["prefill_requests"], result["prefill_tokens"]) == (1, 512)


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
    table = iterations(trace)

    assert table.schema == pl.Schema(ITERATIONS.dtypes)
    marked = whole_trace in SERVING.values() and "capture" not in whole_trace.name
    assert (serving(trace) is not None) == marked
    assert table.height == (trace.steps.height if marked else 0)


@pytest.fixture
def decode() -> Path:
    if not SERVING:
        pytest.skip("other people's traces are not here")
    return SERVING["serving/sglang_decode"]


def test_a_replayed_graph_has_the_batch_size_of_its_capture(decode: Path) -> None:
    capture = SERVING["serving/sglang_decode.capture_bs32"]

    (without,) = iterations(loaded(decode)).to_dicts()
    (result,) = iterations(load(decode, captures=[capture])).to_dicts()

    assert (without["run"], without["graph_batch"]) == ("graph", None)
    assert (result["run"], result["graph_batch"], result["requests"]) == (
        "graph",
        32,
        32,
    )


def test_a_summary_says_what_a_token_costs(decode: Path) -> None:
    summary = summarise(loaded(decode))

    text = summary_text.render([summary], width=100, color=False)
    assert "1 iteration: 1 decode, known by the engine's annotations" in text
    assert "3,087" in text  # 32 tokens in 10.37 ms
    document = json.loads(summary_json.render([summary]))
    (phase,) = document["traces"][0]["serving"]["phases"]
    assert phase["tokens_per_s"] == pytest.approx(32 / 0.010366888)


DATA = Path(__file__).parent / "data" / "serving"


def recorded(name: str, *captures: str) -> Trace:
    """Return a loop of ours as an H200 ran it."""
    files = [DATA / f"{capture}.json.gz" for capture in (name, *captures)]
    return load(files[0], captures=files[1:])


def codes(trace: Trace) -> set[str]:
    """Return the rules that find something of weight."""
    findings = outcome(Recording("trace", trace)).findings
    return {
        finding.code for finding in findings if finding.severity is not Severity.info
    }


@pytest.mark.real
def test_phases_of_a_generate_loop_are_known_without_marks() -> None:
    table = iterations(recorded("generate_static_compiled"))

    assert table["phase"].to_list() == ["prefill", *["decode"] * 7]
    assert table["requests"].to_list() == [8] * 8
    assert table["context"].to_list() == [8 * (256 + at) for at in range(8)]
    assert table["known_by"].to_list() == ["shapes", *["guess"] * 7]


@pytest.mark.real
def test_the_summary_of_a_serving_trace_fits_its_schema() -> None:
    summary = summarise(recorded("sync_item_graph_vllm"))

    assert errors("summary", json.loads(summary_json.render([summary]))) == []


@pytest.mark.real
def test_a_sync_per_token_is_one_finding() -> None:
    trace = recorded("sync_item_graph_vllm")

    assert codes(trace) == {"SRV003"}
    result = serving(trace)
    assert result is not None
    assert result.between["activity"].to_list()[0] == "launching"


def test_a_sync_per_token_is_said_to_cost_what_it_did() -> None:
    """Measured: 0.92 ms a token and 0.99 in another run, 0.78 without the sync."""
    trace = recorded("sync_item_graph_vllm")
    report = outcome(Recording("trace", trace), "SRV003")

    assert 0.14e6 < report.findings[0].saves_ns < 0.2e6
    assert report.step_ns == pytest.approx(0.922e6, rel=0.05)


@pytest.mark.real
def test_a_loop_that_reads_tokens_one_iteration_late_is_clean() -> None:
    trace = recorded("host_gap_overlapped_vllm")

    assert codes(trace) == set()
    result = serving(trace)
    assert result is not None
    decode = result.phases.filter(pl.col("phase") == "decode").row(0, named=True)
    assert decode["graphs"] > 0.99
    assert decode["gap_share"] < 0.1


@pytest.mark.real
def test_the_padding_of_a_graph_is_known_with_its_capture() -> None:
    trace = recorded("graph_32_for_20_vllm", "graph_32_for_20.capture")
    table = iterations(trace)

    assert table["graph_batch"].unique().to_list() == [32]
    assert table["requests"].unique().to_list() == [20]
    assert codes(trace) == {"SRV004"}
    assert codes(recorded("graph_32_for_20_vllm")) == set()


@pytest.mark.real
def test_a_prefill_before_a_loop_that_decodes_is_no_warm_up() -> None:
    for name in ("sync_item_graph_vllm", "generate_static_compiled"):
        trace = recorded(name)
        assert trace.steps["warmup"].to_list()[:2] == [True, False]
        assert not outcome(Recording("trace", trace), "TRC003").findings


@pytest.mark.real
@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("SRV002", {"SYN001", "HST003", "SRV003"}),
        ("SRV003", {"SYN001", "SRV002"}),
        ("SRV007", {"CPY001"}),
    ],
)
def test_one_fact_is_one_finding(code: str, others: set[str]) -> None:
    example = bundled_rules()[code].examples[0]
    findings = drawn_findings(example.drawing, args=example.args)

    assert code in {finding.code for finding in findings}
    assert not others & {finding.code for finding in findings}


@pytest.mark.real
def test_the_example_of_a_training_is_not_shown_for_a_decode_loop() -> None:
    example = bundled_rules()["SRV001"].examples[0]
    (finding,) = drawn_findings(example.drawing, "LCH002")

    assert finding.example == ""


@pytest.mark.real
def test_what_is_in_no_module_stays_where_modules_are_known() -> None:
    drawing = bundled_rules()["SRV001"].examples[0].drawing
    first, *others = drawing.splitlines()
    width = first.index("]") - 7
    module = "[nn.Module: Llama_0".ljust(width // 2 - 1) + "]"
    modules = 2 * (" " + module).ljust(width)

    def removed(drawn: str) -> int:
        (finding,) = drawn_findings(drawn, "SRV001")
        (fix,) = finding.fixes
        assert fix.spans is not None
        return int((fix.spans["end"] - fix.spans["start"]).sum())

    whole = removed(drawing)
    part = removed("\n".join([first, f"host    {modules.rstrip()}", *others]))

    assert 0 < part < 0.6 * whole


@pytest.mark.parametrize(("search", "expected"), [("_sample", 1), ("_beam_search", 0)])
def test_no_graph_is_promised_for_beam_search(search: str, expected: int) -> None:
    drawing = bundled_rules()["SRV001"].examples[0].drawing
    first, *others = drawing.splitlines()
    frame = f"[transformers/generation/utils.py(9): {search}".ljust(len(first) - 9)

    drawn = "\n".join([f"host    {frame}]", first, *others])

    assert len(drawn_findings(drawn, "SRV001")) == expected


@pytest.mark.parametrize(
    ("picked", "expected"), [([16, 8, 1024, 128], True), ([32000, 128], False)]
)
def test_a_cache_that_is_reordered_is_that_of_a_beam_search(
    picked: list[int], *, expected: bool
) -> None:
    example = bundled_rules()["SRV007"].examples[0]
    drawing = example.drawing.replace("aten::mm          ", "aten::index_select")
    picks = {"aten::index_select": inputs([picked, [], [16]], ["float", "", "long"])}

    trace = load_drawn(drawing, {**example.args, **picks})

    assert reorders_cache(trace) is expected


_STATIC = 'generate(…, cache_implementation="static")'


def _grown(code: str, frame: str) -> Finding:
    """Return what is said of a decode whose cache grows, below a Python call."""
    example = bundled_rules()["SRV007"].examples[0]
    width = max(map(len, example.drawing.splitlines()))
    around = f"    host   [{frame}".ljust(width) + "]" if frame else ""
    (finding,) = drawn_findings(f"{around}\n{example.drawing}", code, args=example.args)
    return finding


@pytest.mark.parametrize("code", ["SRV001", "SRV007"])
@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("transformers/generation/utils.py(9): _sample", f"call {_STATIC}"),
        ("transformers/models/llama/modeling_llama.py(9): f", f"formers' {_STATIC}"),
        ("models/transformers/decoder.py(9): forward", ""),
        ("decode.py(9): step", ""),
        ("", f"; if it is transformers that generates, {_STATIC}"),
    ],
)
def test_a_cache_of_transformers_is_advised_where_it_runs(
    code: str, frame: str, says: str
) -> None:
    finding = _grown(code, frame)

    assert says in finding.advice
    assert ("transformers" in finding.advice) == (says not in ("", f"call {_STATIC}"))
    assert (_STATIC in finding.advice) == bool(says)


@pytest.mark.real
def test_an_example_of_generate_is_given_where_it_runs() -> None:
    assert (
        "generate" in _grown("SRV007", "transformers/generation/utils.py(9): f").example
    )
    assert _grown("SRV007", "decode.py(9): step").example == ""
    assert _grown("SRV007", "").example == ""


def stalls(after: int) -> list[str]:
    """Return what is said of a prefill between decodes of 16 and of this many."""
    first, last = (f"@execute_context_0(0)_generation_{n}({n})" for n in (16, after))
    names = (first, "@execute_context_1(8192)_generation_0(0)", last)
    widths = (50, 6000, 50)
    drawn = "".join(
        f"[{name}".ljust(width - 1) + "]"
        for name, width in zip(names, widths, strict=True)
    )
    return [finding.message for finding in drawn_findings(f"host   {drawn}", "SRV005")]


def test_a_prefill_by_itself_stalls_those_that_decode_before_and_after() -> None:
    assert stalls(17) == ["a prefill of 8,192 tokens makes 16 decoding requests wait"]


def test_the_prefill_of_another_generation_stalls_nobody() -> None:
    assert stalls(1) == []


_LATE = """
    host   [@execute_context_1(512)_generation_3(3)                   ]
    host    [aten::mm           ]
    host     [cudaLaunchKernel>1]
    gpu 7                                            [gemm_kernel<1]
"""


def late_start(folder: Path, late_us: int) -> Trace:
    """Return an iteration whose kernel starts this long after it is drawn."""
    drawn = draw(_LATE)
    for event in drawn["traceEvents"]:
        if event.get("cat") == "kernel":
            event["ts"] += late_us
    file = folder / "trace.json"
    file.write_text(json.dumps(drawn), encoding="utf-8")
    return load(file, cache=False)


def test_a_gpu_that_is_busy_before_the_recording_is_not_idle_until_its_first_work(
    tmp_path: Path,
) -> None:
    summary = summarise(late_start(tmp_path, 149_000))

    assert summary.queued_ns == pytest.approx(149e6, rel=0.01)
    assert summary.gpu_busy == 1
    assert summary.serving is not None
    (phase,) = summary.serving.phases.to_dicts()
    assert (phase["tokens"], phase["tokens_per_s"], phase["per_token"]) == (
        515,
        None,
        None,
    )
    printed = summary_text.render([summary], width=100, color=False)
    assert "before the recording" in " ".join(printed.split())


def test_a_gpu_that_was_free_idles_until_its_first_work(tmp_path: Path) -> None:
    summary = summarise(late_start(tmp_path, 0))

    assert summary.queued_ns == 0
    assert summary.gpu_busy < 1
    assert summary.serving is not None
    assert summary.serving.phases["tokens_per_s"].is_not_null().all()


VLLM = SHARED / "vllm" / "prefilldecode.json.gz"


@pytest.mark.skipif(not VLLM.is_file(), reason="other people's traces are not here")
def test_the_padding_of_a_mixed_graph_compares_tokens_with_tokens() -> None:
    capture = VLLM.with_name("prefilldecode.capture.json.gz")

    trace = load(VLLM, captures=[capture])

    (iteration,) = iterations(trace).to_dicts()
    assert (iteration["graph_tokens"], iteration["graph_batch"]) == (8192, None)
    result = serving(trace)
    assert result is not None
    (phase,) = result.phases.to_dicts()
    assert phase["padding"] == 0
    assert phase["tokens_per_s"] is None
    assert phase["graphs"] > 0.9
    assert trace.steps["gpu_idle"].item() < 0.01 * trace.steps["time"].item()


def test_an_iteration_that_graphs_run_in_parts_shows_their_share() -> None:
    trace = load_drawn("""
        host   [@execute_context_0(0)_generation_3(3)                             ]
        host    [aten::mm           ][cudaGraphLaunch>2]
        host     [cudaLaunchKernel>1]
        gpu 7                         [gemm_kernel<1] [softmax<2][gemm_kernel<2]
    """)

    result = serving(trace)

    assert result is not None
    assert result.iterations["run"].to_list() == ["in parts"]
    assert 0.4 < result.phases["graphs"].item() < 0.8
