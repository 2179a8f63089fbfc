"""`traceq summary`: what is on the screen, in every format and at every width."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from command import traceq
from conftest import FIXTURES, ROOT
from goldens import assert_golden
from recordings import loaded

import traceq as api
from traceq.analysis.summary import summarise
from traceq.analysis.time.mfu import Compute
from traceq.report.base.columns import Column, fitted
from traceq.report.base.text import short_kernel
from traceq.report.summary import csv as summary_csv
from traceq.report.summary import json as summary_json
from traceq.report.summary import markdown as summary_markdown
from traceq.report.summary import text as summary_text
from traceq.testing import draw, load_drawn

TRACE = "fixtures/attn_mask_fmha/trace.json.gz"
OTHER = "fixtures/copies/trace.json.gz"
FORMATS = ("text", "markdown", "csv", "json")


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.golden
@pytest.mark.parametrize(
    ("form", "file"),
    [("text", "summary.txt"), ("markdown", "summary.md"), ("csv", "summary.csv")],
)
def test_a_format_is_as_reviewed(form: str, file: str) -> None:
    assert_golden(file, traceq("summary", TRACE, "--format", form, width=80).out)


@pytest.mark.golden
def test_several_traces_are_as_reviewed() -> None:
    paths = [path.relative_to(ROOT) for path in FIXTURES]

    assert_golden("summary_of_several.txt", traceq("summary", *paths, width=80).out)


def shape(value: object) -> object:
    """Return a JSON value with the names of types for what it holds."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.mark.golden
def test_the_names_and_types_of_json_are_as_reviewed() -> None:
    document = json.loads(traceq("summary", TRACE, "--format", "json").out)

    assert_golden("summary_shape.json", json.dumps(shape(document), indent=1) + "\n")


def test_json_has_the_numbers_of_the_trace() -> None:
    (result,) = json.loads(traceq("summary", TRACE, "--format", "json").out)["traces"]

    assert (result["facts"]["events"], result["facts"]["flows"]) == (11435, 1639)
    assert result["facts"]["start_ns"] == 1794701483956727101
    assert result["devices"][0]["memory"] == 150109880320
    assert [step["time"] for step in result["steps"]] == [12256988, 12259514]
    assert [step["launches"] for step in result["steps"]] == [211, 211]
    assert result["gpu_time_ns"] == 11861124.5
    assert result["kinds"][0]["time_ns"] == result["ops"][0]["time_ns"] == 2712000.5
    assert result["memory"]["allocated"] == 3482832896
    assert result["compute"]["flops"] == 2960306208768


def test_every_trace_fits_every_terminal_and_every_format(whole_trace: Path) -> None:
    summary = summarise(loaded(whole_trace))

    for summaries in ([summary], [summary, summary]):
        for width in (30, 80, 300):
            text = summary_text.render(summaries, width=width, color=False)
            assert max(map(len, text.splitlines())) <= min(width, 120)
        assert summary_markdown.render(summaries).startswith(("### ", "| trace "))
        rows = list(csv.DictReader(io.StringIO(summary_csv.render(summaries))))
        traces = json.loads(summary_json.render(summaries))["traces"]
        assert len(rows) == len(traces) == len(summaries)


def numbers_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w.:,\[…])\d[\d,]*\.?\d*%?(?![\w.…])", text)


@pytest.mark.real
@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_the_same_facts_as_a_wide_one(width: int) -> None:
    def facts(width: int) -> list[str]:
        screen, *_ = traceq("summary", TRACE, width=width).out.split("\n\n")
        return screen.split()

    assert facts(width) == facts(120)


@pytest.mark.real
@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_number_of_a_table_is_cut(width: int) -> None:
    def tables(width: int) -> list[list[str]]:
        _, *tables = traceq("summary", TRACE, width=width).out.split("\n\n")
        return [table.splitlines() for table in tables]

    for narrow, wide in zip(tables(width), tables(120), strict=True):
        for line, whole in zip(narrow[1:], wide[1:], strict=False):
            if not line.startswith("(no room"):
                assert set(numbers_in(line)) <= set(numbers_in(whole)), line


LABELS = "Device Recorded Steps GPU Launches Compute Tokens Roofline Memory"


@pytest.mark.parametrize("label", LABELS.split())
def test_every_fact_has_its_line(label: str) -> None:
    assert any(line.startswith(f"{label} ") for line in traceq("summary", TRACE).lines)


TRAINING = """
host     [ProfilerStep#0                                   ][ProfilerStep#1      ][ProfilerStep#2      ]
host      [aten::mm          ]                                [aten::mm  ]         [aten::mm  ]
host       [cudaLaunchKernel>1]                                [cudaLau>2]          [cudaLau>3]
gpu 7                       [sgemm_nn<1                  ]          [sgemm_nn<2]        [sgemm_nn<3]
"""  # noqa: E501 - a picture


@pytest.mark.real
def test_a_first_step_that_warms_up_is_marked_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(draw(TRAINING)))
    trace = api.load(path, cache=False)
    assert trace.steps["warmup"].to_list() == [True, False, False]

    (line,) = (line for line in traceq("summary", path).lines if "(warm-up" in line)

    assert line.startswith("Steps      2 of ")
    assert re.search(r"#0 [\d.]+ ms \(warm-up, excluded\), #1 [\d.]+ ms", line)


def test_what_is_not_known_is_said_plainly() -> None:
    trace = load_drawn("host [aten::mm      ]\nhost  [cudaLaunchKernel>1]\n"
                       "gpu 7             [sgemm_nn<1]")  # fmt: skip

    text = summary_text.render([summarise(trace)], width=80, color=False)

    assert "unknown GPU" in text
    assert "Steps      none recorded; the whole trace counts as one" in text
    assert "Compute    unknown: shapes were not recorded" in text
    assert "Memory     unknown: " in text


def test_a_trace_without_a_gpu_shows_its_ops_by_host_time(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(draw("host [aten::mm    ][aten::add]")))

    out = traceq("summary", path).out

    assert "no GPU work in the trace" in out
    assert "Ops by host time" in out
    assert "aten::mm" in out
    assert "Kernels" not in out


def test_several_traces_get_one_line_each_in_a_pipe(tmp_path: Path) -> None:
    long = tmp_path / ("very" * 30) / "trace.json.gz"
    long.parent.mkdir()
    long.write_bytes(FIXTURES[0].read_bytes())

    lines = traceq("summary", long, FIXTURES[1]).lines

    assert len(lines) == 3
    assert lines[1].split()[-1] == "24.4%"


def test_several_traces_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    for name in ("a/1.json.gz", "a/2.json.gz", "b/1.json.gz"):
        path = tmp_path / "runs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FIXTURES[0].read_bytes())
    paths = sorted((tmp_path / "runs").rglob("*.gz"))

    names = [line.split()[0] for line in traceq("summary", *paths).lines]

    assert names == ["trace", *(str(Path(name)) for name in ("a/1", "a/2", "b/1"))]


@pytest.mark.real
def test_the_same_trace_given_twice_keeps_its_name() -> None:
    names = [line.split()[0] for line in traceq("summary", TRACE, TRACE).lines]

    assert names == ["trace", "trace", "trace"]


_TEXTS = (
    "trace",
    "device",
    "incomplete",
    "bound_by",
    "bound_sure",
    "step_from",
    "tokens_from",
)


@pytest.mark.slow
def test_csv_of_several_traces_has_a_row_each_and_plain_numbers() -> None:
    out = traceq("summary", *FIXTURES, "--format", "csv").out

    rows = list(csv.DictReader(io.StringIO(out)))

    assert [row["trace"] for row in rows] == [str(path) for path in FIXTURES]
    for row in rows:
        for name, cell in row.items():
            if name not in _TEXTS:
                assert re.fullmatch(r"(\d+(\.\d+)?)?", cell), (name, cell)


def test_csv_writes_the_smallest_and_the_largest_numbers_without_exponent() -> None:
    trace = load_drawn("host [aten::mm    ]\ngpu 7 [sgemm_nn  ]")
    summary = dataclasses.replace(
        summarise(trace), compute=Compute(flops=2.0**70, rate=1.5e16, utilisation=2e-4)
    )

    (row,) = csv.DictReader(io.StringIO(summary_csv.render([summary])))

    assert row["flop"] == str(2**70)
    assert row["flop_per_second"] == "15000000000000000"
    assert row["mfu"] == "0.0002"
    assert row["kind_gemm_ms"] == "0.012"


def test_the_csv_file_has_the_same_rows_as_the_csv_format(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"

    answer = traceq("summary", *FIXTURES[:2], "--format", "csv", "-o", file)

    assert (answer.status, answer.out, answer.err) == (0, "", "")
    assert file.read_text() == traceq("summary", *FIXTURES[:2], "--format", "csv").out


@pytest.mark.slow
def test_the_old_spelling_of_a_csv_file_works_and_says_the_new_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "sweep.csv"

    answer = traceq("summary", *FIXTURES, "--csv", file)

    assert answer.err == "traceq: --csv FILE is now --format csv -o FILE\n"
    assert file.read_text() == traceq("summary", *FIXTURES, "--format", "csv").out
    assert answer.out.startswith("trace")


def test_an_existing_csv_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text("mine")

    answer = traceq("summary", TRACE, "--format", "csv", "-o", file)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        f"traceq: {file} exists already: give another name, or --overwrite\n"
    )
    assert file.read_text() == "mine"


def test_a_csv_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "sweep.csv"

    answer = traceq("summary", TRACE, "--format", "csv", "-o", file)

    assert answer.status == 2
    assert (
        answer.err == f"traceq: {file} cannot be written: No such file or directory\n"
    )


@pytest.mark.slow
def test_json_has_the_same_names_for_every_trace() -> None:
    out = traceq("summary", *FIXTURES, "--format", "json").out

    traces = json.loads(out)["traces"]

    assert len({tuple(trace) for trace in traces}) == 1
    for name in ("facts", "memory", "compute"):
        assert len({tuple(trace[name]) for trace in traces}) == 1
    for name in ("devices", "steps", "kinds", "ops", "kernels"):
        assert len({tuple(row) for trace in traces for row in trace[name]}) == 1


def test_json_says_in_nanoseconds_and_bytes_what_the_tables_say() -> None:
    trace = api.load(TRACE)

    (result,) = json.loads(traceq("summary", TRACE, "--format", "json").out)["traces"]

    assert result["averaged_steps"] == 2
    assert result["as_recorded"]["step_ns"] == trace.steps["time"].mean()
    assert result["gpu_time_ns"] * 2 == sum(
        row["time_ns"] * 2 for row in result["kinds"]
    )
    assert result["as_recorded"]["gpu_busy"] == pytest.approx(
        sum(trace.steps["gpu_busy"]) / sum(trace.steps["time"])
    )
    assert result["memory"]["allocated"] == trace.memory["allocated"].max()


def cut_trace(path: Path) -> Path:
    whole = gzip.decompress(FIXTURES[0].read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("several", [False, True])
def test_an_incomplete_trace_is_marked(
    form: str,
    several: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
) -> None:
    path = cut_trace(tmp_path / "cut.json")

    answer = traceq("summary", path, *FIXTURES[:several], "--format", form)

    assert answer.status == 0
    assert f"{path} is incomplete: the file ends before the trace does" in answer.err
    if form == "csv":
        row, *_ = csv.DictReader(io.StringIO(answer.out))
        assert row["incomplete"] == "true"
    elif form == "json":
        facts = json.loads(answer.out)["traces"][0]["facts"]
        assert facts["incomplete"]
        assert "the file ends before the trace does" in facts["damage"][0]
    elif several:
        assert "(incomplete)" in answer.out
    else:
        assert "INCOMPLETE" in answer.out.upper()
        assert "the file ends before the trace does" in answer.out


NASTY = "=1+1|`x`<b>[red]*_\x1b[2J\u202e\x9b\r\n語"
ACTING = set("\x1b\u202e\x9b\r")


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """Return a trace in which everything that has a name has a nasty one."""
    document = draw(
        "host [ProfilerStep#1                   ]\n"
        "host  [NAME(3): NAME              ]\n"
        "host   [NAME               ]\n"
        "host    [cudaLaunchKernel>1]\n"
        "gpu 7                  [NAME<1]",
    )
    document["deviceProperties"] = [{"id": 0, "name": "NAME"}]
    path = tmp_path / "nasty.json"
    text = json.dumps(document).replace("NAME", json.dumps(NASTY)[1:-1])
    path.write_text(text)
    assert NASTY in api.load(path, cache=False).kernels["name"].to_list()
    return path


@pytest.mark.real
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("width", [60, 120])
def test_nasty_names_cannot_act_on_a_terminal(
    form: str, width: int, nasty: Path
) -> None:
    answer = traceq("summary", nasty, "--format", form, width=width)

    assert answer.status == 0
    assert not ACTING & set(answer.out)


@pytest.mark.real
def test_nasty_names_are_text_on_the_screen(nasty: Path) -> None:
    out = traceq("summary", nasty, width=120).out

    assert r"=1+1|`x`<b>[red]*_\x1b[2J\u202e\x9b\r\n語" in out


@pytest.mark.real
def test_nasty_names_do_not_break_a_markdown_table(nasty: Path) -> None:
    lines = traceq("summary", nasty, "--format", "markdown").lines

    for table in "\n".join(lines).split("\n\n")[2:]:
        borders = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(borders) == 1, table
    for line in lines:
        assert "<b>" not in line
        theirs = re.sub(r"`\(?#\d+\)?,?`", "", line)
        assert not re.search(r"(?<!\\)(`|\*_|\[red)", theirs)


@pytest.mark.real
def test_a_sheet_does_not_compute_the_name_of_a_device(nasty: Path) -> None:
    out = traceq("summary", nasty, "--format", "csv").out

    (row,) = csv.DictReader(io.StringIO(out))
    assert row["device"].startswith("'=1+1")


@pytest.mark.real
def test_json_keeps_nasty_names_as_they_are(nasty: Path) -> None:
    (result,) = json.loads(traceq("summary", nasty, "--format", "json").out)["traces"]

    assert result["kernels"][0]["name"] == NASTY


def test_wide_characters_count_as_two() -> None:
    lines, _ = fitted([Column("name"), Column("n", number=True)], [["語" * 9, "1"]], 14)

    assert lines == ["name         n", "語語語語語…  1"]


def test_columns_without_room_are_named() -> None:
    columns = [Column("trace"), Column("one", number=True), Column("two", number=True)]

    lines, left_out = fitted(columns, [["a", "1", "2"]], 12)

    assert lines == ["trace  one", "a        1"]
    assert left_out == ["two"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
            "at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::"
            "(anonymous namespace)::BinaryOpScalarFunctor<c10::BFloat16, 1, 1, 0>,"
            " std::multiplies<float>, float>(int)",
            "multi_tensor_apply_kernel<BinaryOpScalarFunctor, multiplies>",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::"
            "gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
            "{lambda(float)#1}>(at::TensorIteratorBase&)>(int)",
            "elementwise_kernel<direct_copy_kernel_cuda>",
        ),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        (
            "void dgrad_engine<float, 512, 6>(int, float*)",
            "dgrad_engine<float, 512, 6>",
        ),
        ("nvjet_sm90_tst_192x128", "nvjet_sm90_tst_192x128"),
    ],
)
def test_a_short_kernel_name_says_what_it_computes(name: str, short: str) -> None:
    assert short_kernel(name) == short


@pytest.mark.real
def test_labels_of_plain_traces_are_columns_of_the_table_and_of_csv(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs.toml"
    runs.write_text(
        f'["{ROOT / TRACE}"]\nseq_len = 512\nstep_ms = 12.0\n'
        f'["{ROOT / OTHER}"]\nseq_len = 64\n'
    )
    label = f"{TRACE}:mask=causal"
    table = traceq("summary", "--runs", runs, "--label", label).lines
    text = traceq("summary", "--runs", runs, "--label", label, "--format", "csv").out
    first, second = csv.DictReader(io.StringIO(text))

    assert table[0].split()[:3] == ["trace", "seq_len", "mask"]
    assert [row.split()[1:6] for row in table[1:]] == [
        ["512", "causal", "2", "12.26", "12.00"],
        ["64", "-", "2", "14.39", "-"],
    ]
    assert (first["label_seq_len"], first["label_mask"]) == ("512", "causal")
    assert (second["label_seq_len"], second["label_mask"]) == ("64", "")
    assert (first["measured_step_ms"], second["measured_step_ms"]) == ("12", "")


def test_a_label_of_no_trace_that_is_given_is_refused() -> None:
    answer = traceq("summary", TRACE, "--label", "other.json:seq_len=512")

    assert answer.status == 2
    assert "other.json is not among the recordings: trace.json.gz" in answer.err


def test_kernels_that_are_no_matmuls_are_listed_by_family() -> None:
    summary = summarise(
        load_drawn("""
            host   [ProfilerStep#1                                                    ]
            host    [cudaLaunchKernel>1][cudaLaunchKernel>2][cudaLaunchKernel>3]
            gpu 7                       [gemm_kernel<1] [softmax_a<2 ][softmax_b<3]
        """)
    )

    (row,) = summary.non_gemm.to_dicts()
    assert (row["kind"], row["kernels"], row["longest"]) == ("softmax", 2, "softmax_a")
    kernels = summary.steady.kernels.filter(pl.col("kind") == "softmax")
    assert row["time"] == kernels["dur"].sum()
    assert "Non-GEMM kernels" in summary_text.render([summary], width=100, color=False)
