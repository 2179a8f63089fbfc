"""User lines and modules of the code that torch.compile generated."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import traceq
from traceq.analysis.base.fused_kernels import by_part
from traceq.analysis.base.lines import has_source_lines
from traceq.errors import InputError
from traceq.formats.inductor_code import generated_code, read_compiled
from traceq.formats.inductor_graph import read_lowered
from traceq.formats.run import read_run
from traceq.inputs.load_trace import with_kernels
from traceq.linter.config import Config
from traceq.linter.need import Need
from traceq.linter.pack import load_rules
from traceq.linter.view import View
from traceq.model.owners import NOBODY
from traceq.shrink.shrink import ShrinkInput, shrink

if TYPE_CHECKING:
    from traceq.model.trace import Trace

_DATA = Path(__file__).parent / "data" / "compiled"
_HEAVY = ("gemm", "attention")


def _loaded(name: str) -> Trace:
    return traceq.load(_DATA / name, cache=False)


@pytest.fixture(scope="module")
def transformer() -> Trace:
    return _loaded("transformer")


def _generated(trace: Trace) -> pl.DataFrame:
    return trace.kernels.filter(pl.col("library") == "triton")


@pytest.mark.parametrize("name", ["transformer", "conv"])
def test_every_generated_kernel_has_a_line_of_the_user(name: str) -> None:
    kernels = _generated(_loaded(name))

    assert kernels.height > 20
    assert kernels["file"].cast(pl.String).unique().to_list() == ["compiled.py"]
    assert kernels["call_line"].null_count() == 0
    assert kernels["line"].null_count() == 0
    assert kernels["module"].null_count() == 0


def _heavy(trace: Trace) -> pl.DataFrame:
    kernels = trace.kernels.filter(pl.col("kind").is_in(_HEAVY))
    modules = kernels.filter(pl.col("module").is_not_null())
    keys = (pl.col("kind"), pl.col("phase"), pl.col("module").cast(pl.String))
    return modules.group_by(*keys).agg(pl.col("op").n_unique()).sort("module", "phase")


@pytest.mark.real
def test_products_and_attention_have_the_modules_of_the_eager_program(
    transformer: Trace,
) -> None:
    compiled, eager = _heavy(transformer), _heavy(_loaded("transformer-eager"))

    assert compiled.height == 62
    assert compiled.equals(eager)


def test_the_wrapper_of_torch_compile_is_no_module(transformer: Trace) -> None:
    modules = transformer.ops["module"].cast(pl.String).drop_nulls()

    assert not modules.str.contains("OptimizedModule").any()


def test_the_backward_of_compiled_code_is_backward(transformer: Trace) -> None:
    backward = transformer.ops.filter(
        pl.col("name").cast(pl.String) == "CompiledFunctionBackward"
    )
    inside = transformer.ops.filter(
        pl.col("thread") == backward["thread"].item(),
        pl.col("ts").is_between(
            backward["ts"].item(), backward["ts"].item() + backward["dur"].item()
        ),
    )

    assert inside.height > 100
    assert inside["phase"].cast(pl.String).unique().to_list() == ["backward"]


def test_a_gradient_of_a_weight_has_the_line_of_its_forward(
    transformer: Trace,
) -> None:
    head = transformer.ops.filter(
        pl.col("module").cast(pl.String) == "Transformer_0/Linear_24"
    )
    products = head.filter(pl.col("name").cast(pl.String) == "aten::mm")

    assert products.group_by("phase", "call_line").len().sort("phase").rows() == [
        ("forward", 76, 1),
        ("backward", 76, 2),
    ]


def test_a_kernel_keeps_all_its_ops_and_its_time_is_split(transformer: Trace) -> None:
    fused = transformer.fused
    shares = fused.group_by("op").agg(pl.col("share").sum())
    first = fused.filter(pl.col("op") == fused["op"][0])
    lines = dict(first.group_by("call_line").agg(pl.col("share").sum()).rows())

    assert shares["share"].is_between(0.999, 1.001).all()
    assert set(lines) == {73, 15, 16, 17}
    assert lines[15] > lines[16] > lines[73]
    op = transformer.ops.row(fused["op"][0], named=True)
    assert op["call_line"] == max(lines, key=lambda line: lines[line])


def test_a_product_has_no_part_in_the_kernel_that_reads_it(transformer: Trace) -> None:
    linear = transformer.fused.filter(pl.col("computes").cast(pl.String) == "linear")

    assert linear.height > 10
    assert linear["share"].max() == 0


def _damaged(folder: Path, content: bytes) -> Path:
    run = folder / "run"
    shutil.copytree(_DATA / "conv", run)
    (run / "rank-0.compiled.json.gz").write_bytes(content)
    return run


def test_without_a_readable_file_the_trace_is_read_and_it_is_said(
    tmp_path: Path,
) -> None:
    trace = traceq.load(_damaged(tmp_path, b"\x1f\x8bno"), cache=False)

    assert trace.fused.is_empty()
    assert trace.rank is not None
    assert any("is damaged" in name for name in trace.rank.missing)


@pytest.mark.parametrize(
    "content",
    [
        {"format": 1},
        {"format": 1, "graphs": [3, {}], "code": [None, {"id": 1, "text": 2}]},
        {"format": 1, "graphs": [{"id": "0/0", "nodes": [{"frames": [[1, 2]]}]}]},
        {"format": 1, "code": [{"key": "f", "post_grad": 'a = torch.ops.aten.t(a["'}]},
    ],
)
def test_nonsense_is_left_out(content: dict[str, Any], tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(content).encode())
    trace = traceq.load(_damaged(tmp_path, packed), cache=False)

    assert trace.fused.is_empty()


def test_a_newer_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.compiled.json.gz"
    file.write_bytes(gzip.compress(b'{"format": 2}'))

    with pytest.raises(InputError, match="update traceq"):
        read_compiled(file)


_PARTITIONED = """
# kernel path: /tmp/torchinductor_me/eo/ceoeq.py
# Source node to ATen node mapping:
#   h => erf, mul
triton_poi_fused_gelu_0 = async_compile.triton('triton_poi_fused_gelu_0', '''
def call(args):
    other.run(args)
''', device_str='cuda')
def partition_0(args):
    # Topologically Sorted Source Nodes: [linear, h], Original ATen: [aten.gelu]
    triton_poi_fused_gelu_0.run(buf1, 4, stream=stream0)
    return (buf1, )
class Runner:
    def call(self, args):
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.addmm]
        extern_kernels.bias_addmm(a, b, out=buf0)
        (buf1,) = self.partitions[0](partition0_args)
        buf2 = torch.ops.aten.convolution_backward.default(buf1)
        cpp_fused_add_0(buf2)
        return (buf2, )
def benchmark_compiled_module():
    extern_kernels.mm(a)
"""


def test_the_order_of_calls_is_that_of_the_code_with_its_partitions() -> None:
    code = generated_code(_PARTITIONED)

    assert [(call.kind, call.name, call.nodes) for call in code.calls] == [
        ("extern", "aten::addmm", ("linear",)),
        ("triton", "triton_poi_fused_gelu_0", ("linear", "h")),
        ("extern", "aten::convolution_backward", ()),
        ("cpp", "cpp_fused_add_0", ()),
    ]
    assert code.hashes == {"triton_poi_fused_gelu_0": "ceoeq"}
    assert code.made_of["triton_poi_fused_gelu_0"] == {"h": ("erf", "mul")}


def test_numbers_of_changing_shapes_tie_no_ops_together() -> None:
    text = """
    def forward(self, s0: "Sym(s0)", primals_1: "bf16[8, s0][s0, 1]cuda:0"):
        # File: model.py:7 in forward, code: return x.view(-1).exp()
        mul: "Sym(8*s0)" = s0 * 8
        view: "bf16[8*s0][1]cuda:0" = torch.ops.aten.reshape.default(primals_1, [mul])

        # ac_graph_id: 4 - PREFER_RECOMPUTE File: model.py:8 in body, code: x.exp()
        exp: "bf16[8*s0][1]cuda:0" = torch.ops.aten.exp.default(view);  view = None
    """
    nodes = read_lowered(text)

    assert [*nodes] == ["primals_1", "view", "exp"]
    assert nodes["view"].inputs == ("primals_1",)
    assert [node.frame and node.frame[::3] for node in nodes.values()] == [
        None,
        ("model.py", 7),
        ("model.py", 8),
    ]


def test_time_by_part_adds_up_and_gives_each_line_its_share(
    transformer: Trace,
) -> None:
    kernels = transformer.kernels
    parts = by_part(transformer, kernels)
    first = parts.filter(pl.col("op") == transformer.fused["op"][0])

    assert parts["time"].sum() == pytest.approx(kernels["dur"].sum())
    assert set(first["call_line"]) == {73, 15, 16, 17}
    assert parts.height > kernels.height


def test_without_stacks_the_lines_of_compiled_code_are_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(_DATA / "conv", run)
    file = run / "rank-0.trace.json.gz"
    document = json.loads(gzip.decompress(file.read_bytes()))
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") != "python_function"
    ]
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = traceq.load(run, cache=False)

    assert not trace.facts.stacks
    assert has_source_lines(trace)
    assert _generated(trace)["call_line"].null_count() == 0
    assert View(trace).meets(Need.LINES)
    assert not View(trace).meets(Need.STACKS)


@pytest.mark.real
@pytest.mark.slow
def test_a_small_trace_keeps_lines_and_modules_but_no_code(tmp_path: Path) -> None:
    (rank,) = read_run(_DATA / "conv").ranks
    given = ShrinkInput(
        rank.trace, sources=rank.sources, compiled=rank.compiled_code, owners=NOBODY
    )
    rules = load_rules()
    small = shrink(given, rules, Config(select=("SYN",)), limit=1 << 20)
    assert small.trace is not None
    file = tmp_path / "trace.json.gz"
    file.write_bytes(small.trace)
    kernels = _generated(traceq.load(file, cache=False))
    modules = kernels["module"].cast(pl.String).unique().to_list()

    assert kernels["call_line"].null_count() == 0
    assert "ConvNet_0/Residual_3/BatchNorm2d_7" in modules
    assert b"Topologically" not in gzip.decompress(small.trace)


def _inductor_folder(folder: Path, *, graphs: bool) -> Path:
    """Write the transformer's code as inductor does, with its graphs or without."""
    packed = (_DATA / "transformer" / "rank-0.compiled.json.gz").read_bytes()
    for entry in json.loads(gzip.decompress(packed))["code"]:
        place = folder / f"{entry['name']}.debug"
        place.mkdir(parents=True)
        (place / "output_code.py").write_text(entry["text"])
        if graphs:
            (place / "fx_graph_transformed.py").write_text(entry["post_grad"])
    return folder


def _with_folder(folder: Path) -> tuple[Trace, int]:
    trace = traceq.load(_DATA / "transformer" / "rank-0.trace.json.gz", cache=False)
    return with_kernels(trace, folder)


def test_inductors_files_give_lines_where_their_graphs_are_there(
    tmp_path: Path, transformer: Trace
) -> None:
    trace, missing = _with_folder(_inductor_folder(tmp_path, graphs=True))
    products = pl.col("name").cast(pl.String) == "aten::mm"
    table, wanted = (item.ops.filter(products) for item in (trace, transformer))

    assert not missing
    # Of the forward, a product is told by the weight that it reads.
    assert table["call_line"].to_list() == wanted["call_line"].to_list()
    assert _generated(trace)["call_line"].is_not_null().mean() > 0.8  # type: ignore[operator]


def test_inductors_code_alone_gives_the_ops_of_each_kernel(tmp_path: Path) -> None:
    trace, missing = _with_folder(_inductor_folder(tmp_path, graphs=False))
    gelu = trace.fused.filter(
        pl.col("kernel").cast(pl.String) == "triton_poi_fused__unsafe_view_gelu_2"
    )

    assert not missing
    assert trace.fused["file"].null_count() == trace.fused.height
    assert {"linear_2", "h"} <= {*gelu["node"].cast(pl.String)}
    assert "aten.gelu" in gelu["computes"].cast(pl.String).to_list()


def test_code_of_another_program_is_not_taken(tmp_path: Path) -> None:
    trace = traceq.load(_DATA / "conv" / "rank-0.trace.json.gz", cache=False)
    other, missing = with_kernels(trace, _inductor_folder(tmp_path, graphs=True))

    assert missing == 2
    assert other.fused.is_empty()


def test_a_folder_without_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="TORCHINDUCTOR_CACHE_DIR"):
        _with_folder(tmp_path)


def test_a_library_is_named_with_the_line_of_the_user_that_calls_it(
    tmp_path: Path,
) -> None:
    packed = (_DATA / "conv" / "rank-0.compiled.json.gz").read_bytes()
    content = json.loads(gzip.decompress(packed))
    library = ["transformers/models/resnet.py", 50, "forward", 55]
    for node in content["graphs"][0]["nodes"]:
        if node["frames"] and node["frames"][-1][3] == 86:
            node["frames"][-1] = library
    run = _damaged(tmp_path, gzip.compress(json.dumps(content).encode()))
    trace = traceq.load(run, cache=False)
    convolutions = trace.ops.filter(
        pl.col("name").cast(pl.String) == "aten::convolution",
        pl.col("via").is_not_null(),
    )

    assert convolutions.select("via", "file", "line", "call_line").cast(
        pl.String
    ).unique().rows() == [
        ("forward (transformers/models/resnet.py:50)", "compiled.py", "96", "99")
    ]
