"""Compiled code as collect records it, with real torch and inductor's C++ kernels."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from collecting import (
    QUICK,
    WITH_TORCH,
    Late,
    Run,
    collect_program,
    environment,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = WITH_TORCH

PROGRAM = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

def decorated(function):
    return function

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def body(self, x):
        return self.down(torch.relu(self.up(x)))  # BODY

    @decorated  # BEGIN
    def forward(self, x):
        y = checkpoint(self.body, x, use_reentrant=False)
        return x + y  # ADD

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        torch._dynamo.graph_break()  # BREAK
        return (x * 2).softmax(-1).sum()  # SOFTMAX

@torch.compile(backend="eager")
def scaled(x, factor):
    return x * factor  # GUARD

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
compiled = torch.compile(net)
for i in range(16):
    scaled(compiled(torch.randn(8, 16)), min(i, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()

import torch._dynamo.utils as utils
from torch._inductor.codecache import PyCodeCache
print(dict(utils.counters["stats"]), dict(utils.counters["graph_break"]))
print(sorted(str(one.compile_id) for one in utils.get_compilation_metrics()))
print(*sorted(one.__file__.rpartition("/")[2] for one in PyCodeCache.modules))
"""


def line_of(mark: str, program: str = PROGRAM) -> int:
    """Return the number of the line with a mark in its comment."""
    (result,) = (
        number
        for number, text in enumerate(program.splitlines(), 1)
        if mark in text.partition("#")[2].split()
    )
    return result


def content(run: Run) -> dict[str, Any]:
    """Return the file of compiled code, without what differs between processes."""
    with gzip.open(run.folder / run.rank["compiled_code"]["file"]) as stream:
        document: dict[str, Any] = json.load(stream)
    for graph in document["graphs"]:
        for node in (*graph["nodes"], *graph["inner"]):
            for module in node["modules"]:
                module[0] = "id"
    return document


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache of inductor's that the runs of this module share, empty at first."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]) -> Run:
    """A run that compiles."""
    return collect_program(tmp_path_factory.mktemp("first"), PROGRAM, env=cache)


@pytest.fixture(scope="module")
def moved(
    first: Run, tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]
) -> Run:
    """The program with its lines moved, from the caches of the first run."""
    assert first.rank["compiled_code"]
    folder = tmp_path_factory.mktemp("moved")
    return collect_program(
        folder, "# moved\n" * 3 + PROGRAM, (*QUICK, "--no-source"), cache
    )


@pytest.fixture(scope="module")
def alone(
    first: Run, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """The program without collect, which compiles into a cache of its own."""
    return subprocess.run(
        [sys.executable, str(first.folder.parents[1] / "program.py")],
        cwd=first.folder.parents[1],
        env=environment(
            {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("alone"))}
        ),
        capture_output=True,
        text=True,
        check=True,
    )


def node(run: Run, graph: str, name: str, kind: str = "nodes") -> list[dict[str, Any]]:
    (result,) = [item for item in content(run)["graphs"] if item["id"] == graph]
    return [entry for entry in result[kind] if entry["name"] == name]


def test_what_is_compiled_is_the_same_with_and_without_us(
    first: Run, alone: subprocess.CompletedProcess[str]
) -> None:
    assert first.status == 0
    assert first.out == alone.stdout
    assert len(re.findall(r"\bc\w+\.py", first.out)) == 4


def test_nothing_is_printed_that_is_not_without_us(
    first: Run, alone: subprocess.CompletedProcess[str]
) -> None:
    told = [line for line in first.err.splitlines() if "traceq" not in line]
    assert [
        name for name in told if "profiler_" not in name
    ] == alone.stderr.splitlines()


def test_a_node_has_its_frames_and_modules(first: Run) -> None:
    (result,) = node(first, "0/0", "x_1")

    assert result["target"] == "add"
    assert result["frames"][-1] == [
        "program.py",
        line_of("BEGIN"),
        "forward",
        line_of("ADD"),
    ]
    assert result["modules"][-1] == ["id", "L['self'].blocks.1", "Block"]
    assert (result["shape"], result["dtype"]) == (["8", "16"], "torch.float32")


def test_what_follows_a_graph_break_belongs_to_its_function(first: Run) -> None:
    (result,) = node(first, "1/0", "softmax")

    file, begin, function, line = result["frames"][-1]
    assert (file, function, line) == ("program.py", "forward", line_of("SOFTMAX"))
    assert begin < line_of("BREAK")


def test_nodes_of_a_checkpointed_function_are_kept_apart(first: Run) -> None:
    result = node(first, "0/0", "linear_1", "inner")

    assert [entry["within"] for entry in result] == ["wrap_body_0", "wrap_body_1"]
    assert {entry["frames"][-1][3] for entry in result} == {line_of("BODY")}


def test_code_is_kept_with_the_names_that_the_trace_has(first: Run) -> None:
    code = content(first)["code"]
    regions = {
        event["name"].split()[3]
        for event in first.events()
        if event.get("name", "").startswith("## Call CompiledFxGraph")
    }

    assert [(entry["id"], entry["backward"]) for entry in code] == [
        (graph, backward) for graph in ("0/0", "1/0") for backward in (False, True)
    ]
    assert {entry["key"] for entry in code} == regions
    assert {f"{entry['name']}.py" for entry in code} <= set(first.out.split())


def test_the_graph_after_grad_has_lines_and_no_folder(
    first: Run, cache: dict[str, str]
) -> None:
    code = content(first)["code"]
    text = json.dumps(code)

    assert f"# File: program.py:{line_of('ADD')} in forward, code: return" in text
    assert str(first.folder.parents[1]) not in text
    assert cache["TORCHINDUCTOR_CACHE_DIR"] not in text


def test_graphs_from_a_cache_have_the_lines_of_the_program_as_it_is(
    first: Run, moved: Run
) -> None:
    then, now = content(first), content(moved)
    lines = re.compile(r"(?<=program.py:)\d+")

    def shifted(match: re.Match[str]) -> str:
        return str(int(match[0]) + 3)

    assert len(then["code"]) == len(now["code"])
    for before, after in zip(then["code"], now["code"], strict=True):
        assert before["text"] == after["text"]
        quoted = re.sub(", code: .*", "", before["post_grad"])
        assert lines.sub(shifted, quoted) == after["post_grad"]
    for before, after in zip(then["graphs"], now["graphs"], strict=True):
        for one, other in zip(before["nodes"], after["nodes"], strict=True):
            assert [at[3] + 3 for at in one["frames"]] == [
                at[3] for at in other["frames"]
            ]


def test_no_source_keeps_lines_but_quotes_none(moved: Run) -> None:
    text = json.dumps(content(moved))

    assert "# File: program.py" in text
    assert "torch.relu(" not in text


def test_graph_breaks_and_recompilations_are_in_the_log_and_not_shown(
    first: Run, moved: Run
) -> None:
    folder = str(first.folder.parents[1])
    log = (first.folder / "stderr.log").read_text()

    assert f"Graph break in user code at {folder}/program.py:{line_of('BREAK')}" in log
    assert "Recompiling function scaled" in log
    assert "return x * factor" in log
    assert "return x * factor" not in (moved.folder / "stderr.log").read_text()
    assert "Recompiling" not in first.err


def test_a_recompilation_has_the_guard_that_failed_and_its_line(first: Run) -> None:
    (result,) = first.rank["compiled"]["recompiles"]

    assert result["function"] == "scaled"
    assert result["why"] == "factor == 0"
    assert (result["guard_file"], result["guard_line"]) == (
        "program.py",
        line_of("GUARD"),
    )


torch: Any = Late("torch")


def doubled(x: Any) -> Any:  # noqa: ANN401 - a tensor
    return x + x


@pytest.fixture
def watching() -> Iterator[Any]:
    """What collect keeps of what this process compiles."""
    result = Late("agent.compiled_graphs").CompiledGraphs(code=True, keep_paths=False)
    result.install()
    yield result
    result.remove()


def compile_and_run() -> list[float]:
    torch._dynamo.reset()  # noqa: SLF001 - or it is compiled once
    result: list[float] = torch.compile(doubled, backend="eager")(
        torch.ones(2)
    ).tolist()
    return result


def test_graphs_beyond_the_limit_are_said_to_be_missing(
    watching: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(type(watching).write.__globals__, "MOST_NODES", 4)

    assert [compile_and_run() for _ in range(2)] == [[2.0, 2.0]] * 2
    assert len(watching.graphs) == 1
    assert watching.missing == {
        "further compiled code": "its graphs have more than 4 nodes"
    }


def test_an_error_of_ours_does_not_reach_the_program(watching: Any) -> None:  # noqa: ANN401
    watching._same = None  # noqa: SLF001 - as if a node could not be read

    assert compile_and_run() == [2.0, 2.0]
    assert "TypeError" in watching.missing["compiled code"]


def test_the_methods_of_torch_are_given_back(watching: Any) -> None:  # noqa: ANN401
    compile_and_run()
    graph = sys.modules["torch._dynamo.output_graph"].OutputGraph
    assert hasattr(graph.call_user_compiler, "__wrapped__")

    watching.remove()

    assert not hasattr(graph.call_user_compiler, "__wrapped__")


TEXT = """
# Original path: /home/somebody/project/kernels.py:12
add_kernel_0 = async_compile.triton('add_kernel', '''
def add_kernel(secret):
    pass
''', device_str='cuda')
# kernel path: /tmp/torchinductor_somebody/ab/cab.py
buf0 = x // y / z
"""


@pytest.mark.parametrize("quotes", [True, False])
def test_a_kernel_of_the_program_is_shown_if_its_source_may_be(*, quotes: bool) -> None:
    code = {"id": None, "backward": False, "text": TEXT}
    file = Late("agent.compiled_file").CompiledFile([], [code], quotes, False)  # noqa: FBT003
    (result,) = json.loads("".join(file.written()))["code"]

    assert "somebody" not in result["text"]
    assert "# Original path: kernels.py:12\nadd_kernel_0 = async" in result["text"]
    assert "# kernel path: cab.py\nbuf0 = x // y / z\n" in result["text"]
    assert ("def add_kernel(secret)" in result["text"]) == quotes
